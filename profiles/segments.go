package profiles

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// pathSegments is a path made of fixed text and of segments, or ends of
// segments, that may be anything: "/users/[^/]+/orders", "/files/[^/]*\.json",
// "/static/.*". Most expressions that tools generate are of this kind, and
// this says the same as they do in a tenth of the time.
type pathSegments struct {
	head  string
	holes []hole
	open  bool // ends with .* or .+
	tail
	source string
}

// hole is [^/]* or [^/]+, which goes on to the next '/' or the end of the path,
// for what follows begins with one of the two.
type hole struct {
	least  int    // bytes that it has at least
	suffix string // fixed text at the end of the segment
	next   string // fixed text that follows, from the '/' on
}

// tail is the .* or .+ at the end.
type tail struct {
	atLeast int
	lines   bool // may have line breaks
}

func (p *pathSegments) holds(f facts) bool {
	rest, ok := strings.CutPrefix(f.path, p.head)
	if !ok {
		return false
	}
	for i := range p.holes {
		h := &p.holes[i]
		end := strings.IndexByte(rest, '/')
		if end < 0 {
			end = len(rest)
		}
		if end < h.least+len(h.suffix) || !strings.HasSuffix(rest[:end], h.suffix) {
			return false
		}
		if rest, ok = strings.CutPrefix(rest[end:], h.next); !ok {
			return false
		}
	}
	if p.open {
		return len(rest) >= p.atLeast && (p.lines || strings.IndexByte(rest, '\n') < 0)
	}
	return rest == ""
}

func (*pathSegments) needs() needs     { return 0 }
func (p *pathSegments) String() string { return fmt.Sprintf("path %q", p.source) }

// segmentsOf returns the steps of an expression, which is anchored at both
// ends, as pathSegments if they are of that kind.
func segmentsOf(steps []*syntax.Regexp) (*pathSegments, bool) {
	p := new(pathSegments)
	for _, step := range steps {
		if p.open {
			return nil, false // there is more after the .*
		}
		if text, ok := literal(step); ok {
			p.append(text)
			continue
		}
		least, ok := repeats(step)
		// In a segment that has a hole already, it would take trying to find
		// where that ends.
		if n := len(p.holes); !ok || n > 0 && p.holes[n-1].next == "" {
			return nil, false
		}
		switch what := step.Sub[0]; {
		case what.Op == syntax.OpAnyChar, what.Op == syntax.OpAnyCharNotNL:
			p.open, p.tail = true, tail{least, what.Op == syntax.OpAnyChar}
		case what.Op == syntax.OpCharClass && slices.Equal(what.Rune, []rune{0, '/' - 1, '/' + 1, utf8.MaxRune}):
			p.holes = append(p.holes, hole{least: least})
		default:
			return nil, false
		}
	}
	return p, true
}

// append takes fixed text.
func (p *pathSegments) append(text string) {
	if len(p.holes) == 0 {
		p.head += text
		return
	}
	h := &p.holes[len(p.holes)-1]
	if h.next == "" {
		i := strings.IndexByte(text, '/')
		if i < 0 {
			i = len(text)
		}
		h.suffix += text[:i]
		text = text[i:]
	}
	h.next += text
}

// literal returns the fixed text that a step is.
func literal(step *syntax.Regexp) (string, bool) {
	if step.Op != syntax.OpLiteral || step.Flags&syntax.FoldCase != 0 {
		return "", false
	}
	var b strings.Builder
	for _, r := range step.Rune {
		if r == utf8.RuneError {
			return "", false // it matches any byte that is not UTF-8, too
		}
		b.WriteRune(r)
	}
	return b.String(), true
}

// repeats returns how often at least a step repeats what it is made of.
func repeats(step *syntax.Regexp) (least int, ok bool) {
	if step.Op == syntax.OpPlus {
		return 1, true
	}
	return 0, step.Op == syntax.OpStar
}
