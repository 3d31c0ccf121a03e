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

// node is a segment of a path. names has the children by segment. The child any has all
// segments that are not in names.
type node struct {
	names map[string]*node
	any   *node
	wide  bool              // had more than maxNames names, which are merged in any
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

// add adds a request with this path below n. Segments of gRPC paths are always names.
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

// merge moves the requests of all names to the child any.
func (n *node) merge() {
	if n.any == nil {
		n.any = &node{}
	}
	for _, c := range n.names {
		n.any.join(c)
	}
	n.names, n.wide = nil, true
}

// join adds the requests at and below other to n.
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

// wildcard is the segment that matches all segments. It cannot be a name, because names
// contain no slash.
const wildcard = "/"

// each calls visit for all routes. Names come before wildcards, so that no route in the
// list hides a later one.
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

// isID reports whether a segment looks like an id. An id is a number, a UUID, or at least
// eight letters, digits and encoding characters of which two are digits.
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
