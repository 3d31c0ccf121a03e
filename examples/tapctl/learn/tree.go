package learn

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// host has the requests of one service.
type host struct{ root node }

// node is a place in the tree of paths. The child any matches each segment.
type node struct {
	names map[string]*node
	any   *node
	wide  bool              // more names than are kept apart
	seen  map[string]*route // by method
}

// route has the requests of one method and path.
type route struct {
	count, failed int
	worst         time.Duration
}

const (
	maxNames    = 24 // siblings that can be names; more are ids
	maxMethods  = 16
	maxSegments = 32
)

func segments(path string) []string { return strings.Split(path[1:], "/") }

// add counts a request below n. Methods of gRPC are names, however many.
func (n *node) add(path []string, grpc bool, method string, s sample) {
	if len(path) > maxSegments {
		return
	}
	for _, segment := range path {
		n = n.child(segment, grpc)
	}
	n.count(method, s)
}

func (n *node) count(method string, s sample) {
	r := n.seen[method]
	if r == nil {
		if len(n.seen) >= maxMethods {
			return
		}
		if n.seen == nil {
			n.seen = map[string]*route{}
		}
		r = &route{}
		n.seen[method] = r
	}
	r.count++
	r.worst = max(r.worst, s.took)
	if s.failed {
		r.failed++
	}
}

func (n *node) child(segment string, grpc bool) *node {
	if c := n.names[segment]; c != nil {
		return c
	}
	if !grpc && len(n.names) >= maxNames {
		n.merge()
	}
	if !grpc && (n.wide || isID(segment)) {
		if n.any == nil {
			n.any = &node{}
		}
		return n.any
	}
	if n.names == nil {
		n.names = map[string]*node{}
	}
	c := &node{}
	n.names[segment] = c
	return c
}

// merge makes one branch of all that were taken for names.
func (n *node) merge() {
	if n.any == nil {
		n.any = &node{}
	}
	for _, c := range n.names {
		n.any.join(c)
	}
	n.names, n.wide = nil, true
}

// join adds all that is below other.
func (n *node) join(other *node) {
	for method, r := range other.seen {
		if n.seen == nil {
			n.seen = map[string]*route{}
		}
		if mine := n.seen[method]; mine != nil {
			mine.count, mine.failed, mine.worst = mine.count+r.count, mine.failed+r.failed, max(mine.worst, r.worst)
		} else {
			n.seen[method] = r
		}
	}
	if other.any != nil {
		if n.any == nil {
			n.any = &node{}
		}
		n.any.join(other.any)
	}
	for name, c := range other.names {
		if n.names == nil {
			n.names = map[string]*node{}
		}
		if mine := n.names[name]; mine != nil {
			mine.join(c)
		} else {
			n.names[name] = c
		}
	}
	if n.wide = n.wide || other.wide; n.wide || len(n.names) > maxNames {
		n.merge()
	}
}

// wildcard is how a segment that may be anything is told from names, which have
// no '/'.
const wildcard = "/"

// each visits all routes, names before wildcards, so that a list in this order
// has no route that hides a later one.
func (n *node) each(path []string, visit func(path []string, method string, r *route)) {
	for _, method := range slices.Sorted(maps.Keys(n.seen)) {
		visit(path, method, n.seen[method])
	}
	for _, name := range slices.SortedFunc(maps.Keys(n.names), cmp.Compare[string]) {
		n.names[name].each(append(slices.Clone(path), name), visit)
	}
	if n.any != nil {
		n.any.each(append(slices.Clone(path), wildcard), visit)
	}
}

// isID reports whether a segment looks like one of many: a number, a UUID, or
// at least eight letters, digits and marks of encodings with two digits
// among them.
func isID(segment string) bool {
	digits, letters, others := 0, 0, 0
	for _, c := range segment {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			letters++
		default:
			others++
		}
	}
	switch {
	case digits > 0 && letters == 0:
		return true
	case strings.ContainsAny(segment, "%@"):
		return true
	}
	return len(segment) >= 8 && digits >= 2 && !strings.Contains(segment, ".")
}
