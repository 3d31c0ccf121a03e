package profiles

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// key is what paths look like that a condition may hold for: parts of fixed
// text, and between each two of them the rest of a segment, whatever that is.
// It may say less than the condition does, never more.
type key struct {
	parts []string // at least one
	open  bool     // anything may follow the last
}

// keyOf returns the key of an expression that is anchored at its begin.
func keyOf(steps []*syntax.Regexp, ended bool) key {
	k := key{parts: []string{""}}
	hole := false // the rest of the segment was given up
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

// withinSegment reports whether nothing that the expression matches has a '/'.
func withinSegment(tree *syntax.Regexp) bool {
	switch tree.Op { //nolint:exhaustive // the others are made of these
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

func (p *pathSegments) key() key {
	k := key{parts: []string{p.head}, open: p.open}
	for _, h := range p.holes {
		k.parts = append(k.parts, h.next)
	}
	return k
}

// keys are what requests look like that a condition may hold for.
type keys struct {
	paths   []key    // one of these, if there are any
	methods []string // else one of these, if there are any
	never   bool     // there are no such requests
}

// maxKeys bounds the places where one route is kept.
const maxKeys = 64

// keysOf returns the keys of a condition.
func keysOf(m matcher) keys {
	switch m := m.(type) {
	case pathIs:
		return keys{paths: []key{{parts: []string{m.want}}}}
	case *pathSegments:
		return keys{paths: []key{m.key()}}
	case *pathMatches:
		return keys{paths: []key{m.key}}
	case pathBegins:
		return keys{paths: m.keys()}
	case grpcCall:
		return keys{paths: []key{m.key()}}
	case methodIs:
		return keys{methods: []string{string(m)}}
	case allOf:
		return m.keys()
	case anyOf:
		return m.keys()
	}
	return keys{}
}

func (p pathBegins) keys() []key {
	below := key{parts: []string{string(p) + "/"}, open: true}
	if p == "" {
		return []key{below}
	}
	return []key{{parts: []string{string(p)}}, below}
}

func (g grpcCall) key() key {
	switch {
	case g.service == "":
		return key{parts: []string{"/", "/" + g.method}, open: g.method == ""}
	case g.method == "":
		return key{parts: []string{"/" + g.service + "/"}, open: true}
	}
	return key{parts: []string{"/" + g.service + "/" + g.method}}
}

// keys are those of the member that says most: all of them say something true.
func (a allOf) keys() keys {
	var best keys
	for _, m := range a {
		if k := keysOf(m); k.weight() > best.weight() {
			best = k
		}
	}
	return best
}

// keys are those of all members, if each has some.
func (a anyOf) keys() keys {
	all := keys{never: true}
	for _, m := range a {
		k := keysOf(m)
		if k.never {
			continue
		}
		if !all.never && (len(k.paths) == 0) != (len(all.paths) == 0) {
			return keys{}
		}
		all.never = false
		all.paths = append(all.paths, k.paths...)
		all.methods = append(all.methods, k.methods...)
		if len(k.paths)+len(k.methods) == 0 || len(all.paths)+len(all.methods) > maxKeys {
			return keys{}
		}
	}
	return all
}

// weight is how much the keys say: bytes of fixed text that the worst of them
// asks for.
func (k keys) weight() int {
	switch {
	case k.never:
		return int(^uint(0) >> 1)
	case len(k.paths) == 0 && len(k.methods) == 0:
		return 0
	case len(k.paths) == 0:
		return 2
	}
	least := -1
	for _, p := range k.paths {
		w := 1
		for _, part := range p.parts {
			w += 2 * len(part)
		}
		if !p.open {
			w++
		}
		if least < 0 || w < least {
			least = w
		}
	}
	return least
}
