package profiles

import (
	"math"
	"strings"

	"github.com/gotower/gotower/layer"
)

// index finds the routes that a request can have at all, by their keys: those
// for certain paths in a tree, those for certain methods in a map. Routes are
// positions in the list of the profile. Each list of positions is ascending.
//
//	/users      ─┬─ end: 3
//	             └─ "/" … segment … ─┬─ end: 0, 4
//	                                 └─ "/orders" end: 1
//
// The smallest position whose whole condition holds wins, wherever it was
// found; so the order in which the tree is walked is of no matter, except that
// what is found early saves looking at what is behind it.
type index struct {
	root    branch
	methods map[string][]int32
}

// branch is a place in a path. What leads there from its parent is text, or
// for a rest the remainder of a segment.
type branch struct {
	text     string
	children []*branch // no two begin with the same byte
	initials string    // of the children, in their order
	rest     *branch   // from here to the next '/' or the end of the path
	here     []int32   // routes for the path that ends here
	below    []int32   // routes for every path that comes by
	first    int32     // smallest position at this branch and beyond
}

const nowhere = math.MaxInt32

func newIndex() *index {
	return &index{methods: make(map[string][]int32)}
}

// add takes the next route. Positions must come in ascending order.
func (x *index) add(position int32, m matcher) {
	k := keysOf(m)
	switch {
	case k.never:
	case len(k.paths) > 0:
		for _, path := range k.paths {
			x.addPath(position, path)
		}
	case len(k.methods) > 0:
		for _, method := range k.methods {
			x.methods[method] = appendOnce(x.methods[method], position)
		}
	default:
		x.addPath(position, key{parts: []string{""}, open: true})
	}
}

func (x *index) addPath(position int32, k key) {
	b := &x.root
	for i, part := range k.parts {
		if i > 0 {
			if b.rest == nil {
				b.rest = &branch{first: position}
			}
			b = b.rest
		}
		b = b.reach(part, position)
	}
	if k.open {
		b.below = appendOnce(b.below, position)
	} else {
		b.here = appendOnce(b.here, position)
	}
}

// reach returns the branch at text below b, and makes it if need be.
func (b *branch) reach(text string, position int32) *branch {
	for text != "" {
		i := strings.IndexByte(b.initials, text[0])
		if i < 0 {
			child := &branch{text: text, first: position}
			b.children = append(b.children, child)
			b.initials += text[:1]
			return child
		}
		child := b.children[i]
		n := commonPrefix(child.text, text)
		if n < len(child.text) {
			child = child.split(n)
			b.children[i] = child
		}
		b, text = child, text[n:]
	}
	return b
}

// split returns a branch for the first n bytes of b's text, with b below it.
func (b *branch) split(n int) *branch {
	upper := &branch{text: b.text[:n], first: b.first, children: []*branch{b}, initials: b.text[n : n+1]}
	b.text = b.text[n:]
	return upper
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// appendOnce appends a position that is not smaller than any before.
func appendOnce(list []int32, position int32) []int32 {
	if n := len(list); n > 0 && list[n-1] == position {
		return list
	}
	return append(list, position)
}

// search looks for the route of one request. It lives on the stack of whoever
// searches; what it asks the access for it asks when the first condition needs
// it.
type search[Req, Rsp any] struct {
	routes []*served[Req, Rsp]
	access layer.Accessor[Req, Rsp]
	req    Req
	facts  facts
	has    needs
	best   int32 // smallest position whose condition holds
}

// match returns the first route that matches, or none.
func (s *snapshot[Req, Rsp]) match(access layer.Accessor[Req, Rsp], req Req) *served[Req, Rsp] {
	q := search[Req, Rsp]{routes: s.routes, access: access, req: req, best: nowhere}
	q.facts.method, q.facts.path = access.Method(req), access.Path(req)
	q.walk(&s.index.root, q.facts.path)
	if len(s.index.methods) > 0 {
		q.try(s.index.methods[q.facts.method])
	}
	if q.best == nowhere {
		return nil
	}
	return s.routes[q.best]
}

// walk tries the routes of the branches that path leads to. Those that say
// most of the path come first: they are cheap, and often decide.
func (q *search[Req, Rsp]) walk(b *branch, path string) {
	if b.first >= q.best {
		return
	}
	if path == "" {
		q.try(b.here)
	} else if i := strings.IndexByte(b.initials, path[0]); i >= 0 {
		child := b.children[i]
		if rest, ok := strings.CutPrefix(path, child.text); ok {
			q.walk(child, rest)
		}
	}
	if b.rest != nil {
		end := strings.IndexByte(path, '/')
		if end < 0 {
			end = len(path)
		}
		q.walk(b.rest, path[end:])
	}
	q.try(b.below)
}

// try looks for the first of the routes that matches, as far as that would be
// better than what was found.
func (q *search[Req, Rsp]) try(positions []int32) {
	for _, position := range positions {
		if position >= q.best {
			return
		}
		if q.holds(q.routes[position]) {
			q.best = position
			return
		}
	}
}

func (q *search[Req, Rsp]) holds(route *served[Req, Rsp]) bool {
	if missing := route.needs &^ q.has; missing != 0 {
		q.ask(missing)
	}
	return route.match.holds(q.facts)
}

func (q *search[Req, Rsp]) ask(missing needs) {
	if missing&needQuery != 0 {
		q.facts.query = q.access.Query(q.req)
	}
	if missing&needAuthority != 0 {
		q.facts.authority = q.access.Authority(q.req)
	}
	if missing&needHeader != 0 {
		q.facts.header = q.access.RequestHeader(q.req)
	}
	q.has |= missing
}
