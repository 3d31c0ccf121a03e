package learn

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// host is the tree of paths that were observed for one service.
type host struct{ root node }

// node is a segment in the tree of paths. Each following segment that is a name, such as books,
// gets its own child in names. All following segments that are ids share one child, any. If there
// are too many names, all names also share this child.
type node struct {
	names map[string]*node
	any   *node
	// wide is true once names contained more than maxNames elements, which were then all merged
	// into the child any.
	wide bool
	seen map[string]*route // by method
}

// route counts the requests with the same method and path: how many there were, how many failed,
// and the longest duration.
type route struct {
	count, failed int
	worst         time.Duration
}

const (
	maxNames    = 24 // maximum number of siblings that are names; if there are more, all are ids
	maxMethods  = 16
	maxSegments = 32
)

// segments splits a path, which begins with a slash.
func segments(path string) []string { return strings.Split(path[1:], "/") }

// add counts a request in the node below n with the given path, and creates missing
// nodes. If grpc is true, the request is a gRPC call, and each segment of the path counts
// as a name. add ignores a path with more than maxSegments segments.
func (n *node) add(path []string, grpc bool, method string, s sample) {
	if len(path) > maxSegments {
		return
	}
	for _, segment := range path {
		n = n.child(segment, grpc)
	}
	n.count(method, s)
}

// count adds a request to the route for its method, unless there are too many methods.
func (n *node) count(method string, s sample) {
	r := n.seen[method]
	if r == nil {
		// Clients may invent methods without limit.
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

// child returns the node for the next segment, and creates it if necessary.
func (n *node) child(segment string, grpc bool) *node {
	if c := n.names[segment]; c != nil {
		return c
	}
	// Too many names are probably ids of a form that isID does not know.
	if !grpc && len(n.names) >= maxNames {
		n.merge()
	}
	// gRPC's segments are names of services and methods, and so never ids.
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

// merge joins all children of n in the map n.names with the child n.any, and empties the
// map. Later segments that are names then also use n.any.
func (n *node) merge() {
	if n.any == nil {
		n.any = &node{}
	}
	for _, c := range n.names {
		n.any.join(c)
	}
	n.names = nil
	n.wide = true
}

// join merges the node other, with all nodes below it, into n. If both trees contain a node with
// the same path, join adds their counts.
func (n *node) join(other *node) {
	// The nil checks keep empty maps from being allocated, because most nodes need none.
	for method, r := range other.seen {
		if n.seen == nil {
			n.seen = map[string]*route{}
		}
		if sum := n.seen[method]; sum != nil {
			sum.count += r.count
			sum.failed += r.failed
			sum.worst = max(sum.worst, r.worst)
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
		if child := n.names[name]; child != nil {
			child.join(c)
		} else {
			n.names[name] = c
		}
	}
	// Merging may have made too many names, which then become one child.
	if n.wide = n.wide || other.wide; n.wide || len(n.names) > maxNames {
		n.merge()
	}
}

// wildcard is what [node.each] passes to visit for a segment that shares its [node] with others,
// such as ids. It is a slash, which no segment of a real path can be.
const wildcard = "/"

// each calls visit for every route at n or below. path leads to n. The child that ids share comes
// last, because linkerd applies the first route that matches.
func (n *node) each(path []string, visit func(path []string, method string, r *route)) {
	// Sorted, so that the output does not change between runs.
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

// isID reports whether segment looks like an id and not like a name. An id contains digits but no
// letters, or contains % or @. A segment with at least eight characters, two digits and no dot is
// an id, too.
func isID(segment string) bool {
	digits := 0
	letters := 0
	for _, c := range segment {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			letters++
		}
	}
	// The order does not matter, because each case alone makes an id.
	switch {
	case digits > 0 && letters == 0:
		return true
	case strings.ContainsAny(segment, "%@"):
		return true
	}
	return len(segment) >= 8 && digits >= 2 && !strings.Contains(segment, ".")
}
