package profiles

import (
	"math"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// index finds the routes whose condition the path of a request may meet. It is a prefix tree. A
// route is represented by its position in the profile, and lists of positions are ascending.
//
//	/users      ─┬─ end: 3
//	             └─ "/" … segment … ─┬─ end: 0, 4
//	                                 └─ "/orders" end: 1
//
// The result is the smallest position whose whole condition holds.
type index struct {
	root branch
}

// branch is a node of the tree. It is reached from its parent by text, or by the
// remainder of a segment if it is the parent's rest.
type branch struct {
	text     string
	children []*branch // their texts begin with different bytes
	initials string    // the first bytes of the texts of children
	rest     *branch   // reached by any bytes up to the next '/' or the end of the path
	here     []int32   // routes for paths that end here
	below    []int32   // routes for all paths that pass here
	first    int32     // the smallest position in this branch and its descendants
}

const notFound = math.MaxInt32

// add adds a route. Positions must be added in ascending order.
func (x *index) add(position int32, m matcher) {
	keys := keysOf(m)
	if keys == nil {
		keys = []key{{parts: []string{""}, open: true}}
	}
	for _, k := range keys {
		x.addPath(position, k)
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

// reach returns the branch for text below b, and creates missing branches.
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

// split returns a new branch for the first n bytes of b.text, with b as its child.
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

// appendOnce appends position to list unless it is the last element.
func appendOnce(list []int32, position int32) []int32 {
	if n := len(list); n > 0 && list[n-1] == position {
		return list
	}
	return append(list, position)
}

// search finds the route of one request. It is kept on the stack. A value of the
// request is read from the accessor when the first condition needs it.
type search[Req, Rsp any] struct {
	routes []*liveRoute[Req, Rsp]
	access layer.Accessor[Req, Rsp]
	req    Req
	facts  facts
	has    needs
	best   int32 // the smallest position found so far
}

// match returns the first route that matches, or nil.
func (s *snapshot[Req, Rsp]) match(access layer.Accessor[Req, Rsp], req Req) *liveRoute[Req, Rsp] {
	q := search[Req, Rsp]{routes: s.routes, access: access, req: req, best: notFound}
	q.facts.method, q.facts.path = access.Method(req), access.Path(req)
	q.walk(&s.index.root, q.facts.path)
	if q.best == notFound {
		return nil
	}
	return s.routes[q.best]
}

// walk tries the routes of all branches on the path below b. Longer branches come
// first, because their routes are few and often decide.
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

// try sets best to the first of positions whose condition holds, if it is less.
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

func (q *search[Req, Rsp]) holds(route *liveRoute[Req, Rsp]) bool {
	if missing := route.needs &^ q.has; missing != 0 {
		q.read(missing)
	}
	return route.match.holds(q.facts)
}

func (q *search[Req, Rsp]) read(missing needs) {
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

// key is a pattern of paths: fixed parts, with the remainder of a segment between two
// parts. All paths that meet a condition match one of its keys.
type key struct {
	parts []string // at least one
	open  bool     // whether any text may follow the last part
}

// keyOf returns the key of an expression that is anchored at its start. ended reports
// whether it is anchored at its end too.
func keyOf(steps []*syntax.Regexp, ended bool) key {
	k := key{parts: []string{""}}
	hole := false // the remainder of the segment is arbitrary
	for _, step := range steps {
		text, fixed := literal(step)
		switch {
		case fixed && hole:
			i := strings.IndexByte(text, '/')
			if i < 0 {
				continue
			}
			k.parts = append(k.parts, text[i:])
			hole = false
		case fixed:
			k.parts[len(k.parts)-1] += text
		case withinSegment(step):
			hole = true
		default:
			k.open = true
			return k
		}
	}
	if hole && ended {
		k.parts = append(k.parts, "")
	}
	k.open = !ended
	return k
}

// withinSegment reports whether the expression matches only text without '/'.
func withinSegment(tree *syntax.Regexp) bool {
	switch tree.Op { //nolint:exhaustive // the others consist of these
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpLiteral:
		return !slices.Contains(tree.Rune, '/')
	case syntax.OpCharClass:
		for i := 0; i < len(tree.Rune); i += 2 {
			if tree.Rune[i] <= '/' && '/' <= tree.Rune[i+1] {
				return false
			}
		}
		return true
	}
	for _, sub := range tree.Sub {
		if !withinSegment(sub) {
			return false
		}
	}
	return true
}

// maxKeys limits the number of keys of one route.
const maxKeys = 64

// keysOf returns keys such that each path for which m holds matches one of them. It
// returns nil if m does not restrict the path.
func keysOf(m matcher) []key {
	switch m := m.(type) {
	case exactPath:
		return []key{{parts: []string{m.want}}}
	case *pathSegments:
		k := key{parts: []string{m.head}, open: m.open}
		for _, h := range m.wildcards {
			k.parts = append(k.parts, h.next)
		}
		return []key{k}
	case *regexPath:
		return []key{m.key}
	case prefixPath:
		below := key{parts: []string{string(m) + "/"}, open: true}
		if m == "" {
			return []key{below}
		}
		return []key{{parts: []string{string(m)}}, below}
	case grpcCondition:
		return []key{m.key()}
	case allOf: // the most specific member, because all members must hold
		var best []key
		for _, member := range m {
			if k := keysOf(member); weight(k) > weight(best) {
				best = k
			}
		}
		return best
	case anyOf:
		var all []key
		for _, member := range m {
			k := keysOf(member)
			if all = append(all, k...); k == nil || len(all) > maxKeys {
				return nil
			}
		}
		return all
	}
	return nil
}

func (g grpcCondition) key() key {
	switch {
	case g.service == "":
		return key{parts: []string{"/", "/" + g.method}, open: g.method == ""}
	case g.method == "":
		return key{parts: []string{"/" + g.service + "/"}, open: true}
	}
	return key{parts: []string{"/" + g.service + "/" + g.method}}
}

// weight returns a measure of the fixed text of the least specific key. A higher weight
// is more specific.
func weight(keys []key) int {
	least := 0
	for i, p := range keys {
		w := 1
		for _, part := range p.parts {
			w += 2 * len(part)
		}
		if !p.open {
			w++
		}
		if i == 0 || w < least {
			least = w
		}
	}
	return least
}
