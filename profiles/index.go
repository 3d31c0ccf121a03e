package profiles

import (
	"math"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// index finds the candidates for a request by its path and host. A candidate is a route, or one
// alternative in its condition. Its number is its position in the order of precedence. The index is
// a tree of path parts. Each node lists the numbers, in ascending order, of the paths that end at
// it, and of those that pass through it. In this example, candidate 1 is for paths such as
// /users/7/orders:
//
//	/users      ─┬─ end: 3
//	             └─ "/" … segment … ─┬─ end: 0, 4
//	                                 └─ "/orders" end: 1
//
// Routes that require a host are in a separate tree for each host. A search returns the candidate
// with the smallest number among those whose condition holds.
type index struct {
	root     branch             // for any host
	exact    map[string]*branch // by host in lower case
	suffixes map[string]*branch // by the end of the host, which begins with a dot, in lower case
}

// branch is a node in an index tree. text is the part of the path that leads from the parent to
// the branch. rest is a wildcard: any bytes up to the next '/' or the end of the path lead to it.
// Its own text is empty.
type branch struct {
	text     string
	children []*branch // their texts begin with different bytes
	initials string    // the first bytes of the texts of children
	rest     *branch   // reached by any bytes up to the next '/' or the end of the path
	here     []int32   // candidates for paths that end here
	below    []int32   // candidates for all paths that pass here
	first    int32     // the smallest position in this branch and its descendants
}

// notFound is the value of search.best while no candidate has matched.
const notFound = math.MaxInt32

// add adds a candidate with the condition m to all trees and branches for which m may hold.
// position is the candidate's number. The caller must add candidates in ascending order.
func (x *index) add(position int32, m matcher) {
	keys := keysOf(m)
	// The condition does not restrict the path, so it is tried for all paths.
	if keys == nil {
		keys = []key{{parts: []string{""}, open: true}}
	}
	hosts := hostsOf(m)
	for _, k := range keys {
		// nil means that the condition does not restrict the host.
		if hosts == nil {
			x.root.addPath(position, k)
		}
		for _, h := range hosts {
			x.tree(h, position).addPath(position, k)
		}
	}
}

// tree returns the tree for the host h, and creates it if it does not exist. position is the
// number of the candidate that is being added, which a new tree stores as its smallest number,
// because later candidates have larger ones.
// A tree is made for the first route of a host. position is that route's place in the order of precedence.
func (x *index) tree(h hostKey, position int32) *branch {
	trees := &x.exact
	if h.suffix {
		trees = &x.suffixes
	}
	if *trees == nil {
		*trees = make(map[string]*branch)
	}
	b := (*trees)[h.text]
	if b == nil {
		b = &branch{first: position}
		(*trees)[h.text] = b
	}
	return b
}

// addPath adds the candidate with the number position to the branch for the paths that match
// k. It creates missing branches. b is the root of a tree.
func (b *branch) addPath(position int32, k key) {
	// Between two fixed parts, any bytes up to the next '/' may lie.
	for i, part := range k.parts {
		if i > 0 {
			if b.rest == nil {
				b.rest = &branch{first: position}
			}
			b = b.rest
		}
		b = b.reach(part, position)
	}
	// Any text may follow, so the candidate is for all paths that pass here.
	if k.open {
		b.below = appendOnce(b.below, position)
	} else {
		b.here = appendOnce(b.here, position)
	}
}

// reach returns the branch below b to which text leads, or b if text is "". If there is none, it
// creates the branch, and splits an existing one if text ends or differs in the middle of its text.
// position is the number of the candidate that is being added, which a new branch stores as its
// smallest number, because later candidates have larger ones.
func (b *branch) reach(text string, position int32) *branch {
	for text != "" {
		// The first bytes of the children differ, so at most one of them can share text with the new path.
		i := strings.IndexByte(b.initials, text[0])
		if i < 0 {
			child := &branch{text: text, first: position}
			b.children = append(b.children, child)
			b.initials += text[:1]
			return child
		}
		child := b.children[i]
		n := commonPrefix(child.text, text)
		// The text of the child differs or goes on after n bytes, so the child is split there.
		if n < len(child.text) {
			child = child.split(n)
			b.children[i] = child
		}
		b, text = child, text[n:]
	}
	return b
}

// split returns a new branch for the first n bytes of b.text. Its only child is b, which keeps
// the other bytes of its text.
func (b *branch) split(n int) *branch {
	upper := &branch{text: b.text[:n], first: b.first, children: []*branch{b}, initials: b.text[n : n+1]}
	b.text = b.text[n:]
	return upper
}

// commonPrefix returns how many bytes at the start of a and b are the same.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// appendOnce appends position to list, unless the last element of list is position.
func appendOnce(list []int32, position int32) []int32 {
	if n := len(list); n > 0 && list[n-1] == position {
		return list
	}
	return append(list, position)
}

// search finds one request's route. It reads a value of the request, such as the header, from the
// accessor only when a condition first needs it. A search is not allocated on the heap.
type search[Req, Rsp any] struct {
	candidates []candidate[Req, Rsp]
	access     layer.Accessor[Req, Rsp]
	req        Req
	facts      facts
	has        needs // the values in facts that were read already
	best       int32 // the smallest matching position so far
}

// candidate is a route and a condition that selects it. Usually this is the route's whole
// condition. With the precedence MostSpecific, a route whose condition is an Any gets one
// candidate for each alternative.
type candidate[Req, Rsp any] struct {
	match matcher
	needs needs // those of match, computed once
	route *liveRoute[Req, Rsp]
	rank  // used only for MostSpecific
}

// match returns the route of req: that of the matching candidate with the smallest number. It returns
// nil if none matches.
func (s *snapshot[Req, Rsp]) match(access layer.Accessor[Req, Rsp], req Req) *liveRoute[Req, Rsp] {
	// The search is not moved to the heap, because no pointer to it escapes.
	q := search[Req, Rsp]{candidates: s.candidates, access: access, req: req, best: notFound}
	// Every condition may read method and path, so they are read at once.
	q.facts.method, q.facts.path = access.Method(req), escaped(access.Path(req))
	// Only if some routes require a host must it be read.
	if s.index.exact != nil || s.index.suffixes != nil {
		q.walkHosts(&s.index)
	}
	// Routes for any host follow; a host's route wins only by its number.
	q.walk(&s.index.root, q.facts.path)
	if q.best == notFound {
		return nil
	}
	return s.candidates[q.best].route
}

// maxHost is the longest host that walkHosts converts to lower case without an allocation.
const maxHost = 64

// walkHosts evaluates the candidates that require the request's host. These are in the tree for
// the exact host, and in the trees for the suffixes of the host that begin with a dot.
func (q *search[Req, Rsp]) walkHosts(x *index) {
	q.read(needAuthority)
	host := hostname(q.facts.authority)
	// A longer host is converted too, with an allocation.
	var buffer [maxHost]byte
	lower := appendLower(buffer[:0], host)
	if b := x.exact[string(lower)]; b != nil {
		q.walk(b, q.facts.path)
	}
	if x.suffixes == nil {
		return
	}
	// Each dot may begin a suffix.
	for i, c := range lower {
		if c == '.' {
			if b := x.suffixes[string(lower[i:])]; b != nil {
				q.walk(b, q.facts.path)
			}
		}
	}
}

// appendLower appends s to b with the ASCII letters in lower case.
func appendLower(b []byte, s string) []byte {
	// Only ASCII: other letters do not occur in host names.
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b = append(b, c)
	}
	return b
}

// walk compares the request with the candidates at b, and at the branches below b that match path.
// path is what remains of the path after b's text. walk lowers q.best to the smallest number of a
// matching candidate. Branches for longer paths come first, because they lead to few candidates,
// and one of these often matches.
func (q *search[Req, Rsp]) walk(b *branch, path string) {
	// No candidate here or below can have a smaller number than the best one.
	if b.first >= q.best {
		return
	}
	if path == "" {
		q.try(b.here)
	} else if i := strings.IndexByte(b.initials, path[0]); i >= 0 {
		child := b.children[i]
		// The child's whole text must match, because only its own descendants and lists say what follows.
		if rest, ok := strings.CutPrefix(path, child.text); ok {
			q.walk(child, rest)
		}
	}
	// The wildcard takes any bytes up to the next '/' or the end.
	if b.rest != nil {
		end := strings.IndexByte(path, '/')
		if end < 0 {
			end = len(path)
		}
		q.walk(b.rest, path[end:])
	}
	q.try(b.below)
}

// try evaluates the candidates with the numbers in positions, which are in ascending order. At the
// first candidate with a condition that holds, it sets q.best to the number of this candidate and
// returns. It stops earlier at a number that is not below q.best, because q.best takes precedence.
func (q *search[Req, Rsp]) try(positions []int32) {
	for _, position := range positions {
		if position >= q.best {
			return
		}
		if q.holds(&q.candidates[position]) {
			q.best = position
			return
		}
	}
}

// holds reports whether the condition of c holds for the request. It first reads the values that the
// condition needs and no earlier one has needed.
func (q *search[Req, Rsp]) holds(c *candidate[Req, Rsp]) bool {
	if missing := c.needs &^ q.has; missing != 0 {
		q.read(missing)
	}
	return c.match.holds(q.facts)
}

// read reads the values in missing from the request.
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
	if missing&needSource != 0 {
		// An address is compared without its zone and as IPv4 if it is mapped.
		q.facts.source = q.access.Source(q.req).Addr().Unmap().WithZone("")
	}
	q.has |= missing
}

// key is a pattern of paths: fixed parts, with any text without '/' between two parts. A route's
// condition is converted to one or more keys. A path that meets the condition matches at least one
// of them.
type key struct {
	parts []string // the fixed parts; at least one
	open  bool     // whether any text may follow the last part
}

// keyOf returns a key for a regular expression. Every path that matches the expression also matches
// the key. steps are the parts of the expression, which must begin with '^'. The
// argument ended reports whether the expression also ends with '$'.
func keyOf(steps []*syntax.Regexp, ended bool) key {
	k := key{parts: []string{""}}
	// hole: after a part that matches any text within a segment, the rest of the segment is unknown.
	hole := false // the remainder of the segment is arbitrary
	for _, step := range steps {
		text, fixed := literal(step)
		switch {
		case fixed && hole:
			// The literal belongs to the unknown segment up to its first '/'.
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
			// The part may match a '/', so nothing is known about the path from here on.
			k.open = true
			return k
		}
	}
	// The path ends with an unknown segment.
	if hole && ended {
		k.parts = append(k.parts, "")
	}
	k.open = !ended
	return k
}

// withinSegment reports whether the expression tree matches only text without '/'.
func withinSegment(tree *syntax.Regexp) bool {
	switch tree.Op { //nolint:exhaustive // the others consist of these
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return false
	case syntax.OpLiteral:
		return !slices.Contains(tree.Rune, '/')
	case syntax.OpCharClass:
		// The class is a list of ranges, each with its first and last rune.
		for i := 0; i < len(tree.Rune); i += 2 {
			if tree.Rune[i] <= '/' && '/' <= tree.Rune[i+1] {
				return false
			}
		}
		return true
	}
	// An expression stays within a segment if all of its parts do.
	for _, sub := range tree.Sub {
		if !withinSegment(sub) {
			return false
		}
	}
	return true
}

// maxKeys is by how many path keys, and by how many hosts, one candidate is indexed at most. A
// condition with more path keys is tried for all paths. A condition with more hosts is tried for
// all hosts.
const maxKeys = 64

// hostKey is a host, or the end of hosts, in lower case. If suffix is false, text is a whole host.
// If suffix is true, text begins with a dot and is the end of a host.
type hostKey struct {
	text   string
	suffix bool
}

// hostsOf returns the hosts to which m restricts requests. If m holds for a request, the request's
// host matches at least one of them. The result is nil if m does not restrict the host, names a
// host that is not ASCII, or names more than maxKeys.
func hostsOf(m matcher) []hostKey {
	switch m := m.(type) {
	case *hostIs:
		text := string(appendLower(nil, m.want))
		// The index compares ASCII only.
		if strings.ToLower(m.want) != text { //nolint:gocritic // EqualFold is another comparison
			return nil // case folding beyond ASCII
		}
		switch {
		case m.kind == matchExact:
			return []hostKey{{text: text}}
		case m.kind == matchSuffix && text[0] == '.':
			return []hostKey{{text: text, suffix: true}}
		}
	case allOf:
		// All members must hold, so the hosts of any one of them are a restriction.
		for _, member := range m {
			if hosts := hostsOf(member); hosts != nil {
				return hosts
			}
		}
	case anyOf:
		var all []hostKey
		// A single member without a host would allow all hosts.
		for _, member := range m {
			hosts := hostsOf(member)
			if all = append(all, hosts...); hosts == nil || len(all) > maxKeys {
				return nil
			}
		}
		return all
	}
	return nil
}

// keysOf returns the keys to which m restricts the request path. If m holds for a request, its path
// matches at least one of them. The result is nil if m does not restrict the path, or needs more
// than maxKeys keys.
func keysOf(m matcher) []key {
	switch m := m.(type) {
	case exactPath:
		return []key{{parts: []string{m.want}}}
	case *pathSegments:
		// Each wildcard is followed by a fixed part.
		k := key{parts: []string{m.head}, open: m.open}
		for _, h := range m.wildcards {
			k.parts = append(k.parts, h.next)
		}
		return []key{k}
	case *regexPath:
		return []key{m.key}
	case prefixPath:
		subtree := key{parts: []string{string(m) + "/"}, open: true}
		if m == "" {
			return []key{subtree}
		}
		// The prefix itself and everything below it.
		return []key{{parts: []string{string(m)}}, subtree}
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

// key returns the key of the paths "/service/method" that meet g. An empty service becomes a wildcard.
// With an empty method, any text may follow the service.
func (g grpcCondition) key() key {
	switch {
	case g.service == "":
		return key{parts: []string{"/", "/" + g.method}, open: g.method == ""}
	case g.method == "":
		return key{parts: []string{"/" + g.service + "/"}, open: true}
	}
	return key{parts: []string{"/" + g.service + "/" + g.method}}
}

// weight returns the smallest weight among keys, or 0 if keys is empty. A key with more fixed text
// weighs more, and is more specific.
func weight(keys []key) int {
	size := 0
	for i, p := range keys {
		w := 1
		for _, part := range p.parts {
			// Each byte counts 2, so that a closed key, which counts 1 more, is decided only between equal lengths.
			w += 2 * len(part)
		}
		if !p.open {
			w++
		}
		if i == 0 || w < size {
			size = w
		}
	}
	return size
}
