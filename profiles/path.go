package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// compile chooses the fastest form of the condition that the expression allows.
func (p Path) compile() (matcher, error) {
	pattern := anchor(string(p))
	tree, err := parseRegex(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("path %s: %w", quote(string(p)), err)
	}
	steps, hasStart, hasEnd := flatten(tree)
	// Most expressions are fixed text or simple wildcards, which need no regular expression.
	if hasStart && hasEnd {
		if s, ok := segmentsOf(steps); ok && len(s.wildcards) == 0 && !s.open {
			return exactPath{s.head, string(p)}, nil
		} else if ok {
			s.source = string(p)
			return s, nil
		}
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", string(p), err)
	}
	// Without a start anchor in the tree, nothing is known about the path.
	m := &regexPath{re: re, source: string(p), key: key{open: true, parts: []string{""}}}
	if hasStart {
		m.key = keyOf(steps, hasEnd)
	}
	// Fixed text at the end rejects most paths at once.
	if n := len(steps); hasEnd && n > 0 {
		m.suffix, _ = literal(steps[n-1])
	}
	return m, nil
}

// anchor returns pattern with '^' at the start and '$' at the end. It adds them if they are
// missing, as linkerd does. It looks only at the first and the last character: `a|b` becomes
// `^a|b$`, and `a\$` gets no second '$'.
func anchor(pattern string) string {
	// As linkerd's proxy: a pattern without anchors must match the whole path too.
	pattern = strings.TrimSpace(pattern)
	if !strings.HasPrefix(pattern, "^") {
		pattern = "^" + pattern
	}
	if !strings.HasSuffix(pattern, "$") {
		pattern += "$"
	}
	return pattern
}

// flatten splits a concatenation into its parts, without the anchors at the start and at the end.
// hasStart and hasEnd report whether tree contains these anchors.
func flatten(tree *syntax.Regexp) (steps []*syntax.Regexp, hasStart, hasEnd bool) {
	steps = appendSteps(nil, tree.Simplify())
	// There may be several anchors, which are the same as one.
	for ; len(steps) > 0 && steps[0].Op == syntax.OpBeginText; hasStart = true {
		steps = steps[1:]
	}
	for ; len(steps) > 0 && steps[len(steps)-1].Op == syntax.OpEndText; hasEnd = true {
		steps = steps[:len(steps)-1]
	}
	return steps, hasStart, hasEnd
}

// appendSteps appends the parts of tree that must match one after another.
func appendSteps(steps []*syntax.Regexp, tree *syntax.Regexp) []*syntax.Regexp {
	switch tree.Op {
	case syntax.OpEmptyMatch:
	case syntax.OpCapture, syntax.OpConcat:
		// A group only matters for its content.
		for _, sub := range tree.Sub {
			steps = appendSteps(steps, sub)
		}
	default:
		steps = append(steps, tree)
	}
	return steps
}

// exactPath is a compiled Path without special characters. It compares strings, which is
// much faster than matching an expression.
type exactPath struct {
	want, source string
}

func (p exactPath) holds(f facts) bool { return f.path == p.want }
func (exactPath) needs() needs         { return 0 }
func (p exactPath) String() string     { return fmt.Sprintf("path %q", p.source) }

// regexPath is a compiled Path that needs a regular expression.
type regexPath struct {
	re     *regexp.Regexp
	key    key    // the key under which the index has the condition
	suffix string // fixed text at the end, compared before the expression is run
	source string
}

// holds reports whether the path matches. The suffix is compared first, because that is fast.
func (p *regexPath) holds(f facts) bool {
	return strings.HasSuffix(f.path, p.suffix) && p.re.MatchString(f.path)
}

func (*regexPath) needs() needs     { return 0 }
func (p *regexPath) String() string { return fmt.Sprintf("path %q", p.source) }

// prefixPath is a compiled PathPrefix, without a '/' at its end.
type prefixPath string

// compile returns an error if p cannot be the beginning of a path.
func (p PathPrefix) compile() (matcher, error) {
	switch {
	case !strings.HasPrefix(string(p), "/"):
		return nil, fmt.Errorf("path prefix %q does not begin with '/'", string(p))
	case strings.ContainsAny(string(p), "?#"):
		return nil, fmt.Errorf("path prefix %q is more than a path", string(p))
	}
	return prefixPath(strings.TrimSuffix(string(p), "/")), nil
}

// holds reports whether the path is the prefix, or continues after it with a '/'.
func (p prefixPath) holds(f facts) bool {
	rest, ok := strings.CutPrefix(f.path, string(p))
	// The prefix "/" is the empty text here, and holds for all paths with a '/' after it.
	if !ok || rest == "" {
		return ok && p != ""
	}
	return rest[0] == '/'
}

func (prefixPath) needs() needs     { return 0 }
func (p prefixPath) String() string { return fmt.Sprintf("path prefix %q", string(p)+"/") }

// grpcCondition is a compiled [GRPC]. It holds if the path names the given gRPC service and
// method.
type grpcCondition struct{ service, method string }

// compile returns an error for names that no gRPC path can contain.
func (g GRPC) compile() (matcher, error) {
	if strings.ContainsAny(g.Service, "/?") || strings.ContainsAny(g.Method, "/?") {
		return nil, fmt.Errorf("gRPC service %q, method %q: a name has a '/' or '?'", g.Service, g.Method)
	}
	if strings.TrimSpace(g.Service) != g.Service || strings.TrimSpace(g.Method) != g.Method {
		return nil, errors.New("gRPC: space around the name of a service or method")
	}
	return grpcCondition{g.Service, g.Method}, nil
}

// holds reports whether the path is that of the service and method. An empty name stands for any.
func (g grpcCondition) holds(f facts) bool {
	// The path must be exactly "/service/method".
	if !strings.HasPrefix(f.path, "/") {
		return false
	}
	service, method, ok := strings.Cut(f.path[1:], "/")
	if !ok || service == "" || method == "" || strings.IndexByte(method, '/') >= 0 {
		return false
	}
	return (g.service == "" || g.service == service) && (g.method == "" || g.method == method)
}

func (grpcCondition) needs() needs { return 0 }

// String returns the condition, for explanations.
func (g grpcCondition) String() string {
	return fmt.Sprintf("gRPC service %q, method %q", cmp.Or(g.service, "*"), cmp.Or(g.method, "*"))
}

// pathSegments is a compiled Path that consists of fixed text, of wildcards within segments, and
// possibly of .* or .+ at the end. Examples are "/users/[^/]+/orders", "/files/[^/]*\.json" and
// "/static/.*". Most expressions in generated profiles look like this. Matching takes a tenth of
// the time that a regular expression needs.
type pathSegments struct {
	head      string
	wildcards []wildcard
	open      bool // whether the expression ends with .* or .+
	tail
	source string
}

// wildcard is one [^/]* or [^/]+ in a pathSegments. It matches up to the next '/' or the
// end of the path.
type wildcard struct {
	least  int    // minimum number of bytes that the wildcard matches
	suffix string // fixed text between the wildcard and the next '/'
	next   string // fixed text from that '/' to the next wildcard
}

// tail is the .* or .+ at the end of a pathSegments.
type tail struct {
	atLeast int  // minimum number of bytes that the tail matches
	lines   bool // whether the tail also matches line breaks
}

// holds reports whether the path matches. It compares the parts from the left to the right, and each only at one
// position, because a wildcard always ends at the next '/'. Therefore it needs no backtracking.
func (p *pathSegments) holds(f facts) bool {
	rest, ok := strings.CutPrefix(f.path, p.head)
	if !ok {
		return false
	}
	for i := range p.wildcards {
		h := &p.wildcards[i]
		// The wildcard takes everything up to the next '/', and its suffix must end there.
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
		// By default a '.' of an expression does not match a line break.
		return len(rest) >= p.atLeast && (p.lines || strings.IndexByte(rest, '\n') < 0)
	}
	return rest == ""
}

func (*pathSegments) needs() needs     { return 0 }
func (p *pathSegments) String() string { return fmt.Sprintf("path %q", p.source) }

// segmentsOf converts an expression that is anchored at both ends to a pathSegments. The
// argument steps are the parts of the expression. It returns false if a pathSegments cannot
// represent the expression.
func segmentsOf(steps []*syntax.Regexp) (*pathSegments, bool) {
	p := new(pathSegments)
	for _, step := range steps {
		if p.open {
			return nil, false // text follows the .*
		}
		if text, ok := literal(step); ok {
			p.append(text)
			continue
		}
		// What is left must be a repeated single character.
		low, ok := repeats(step)
		// Two wildcards in one segment would need backtracking.
		if n := len(p.wildcards); !ok || n > 0 && p.wildcards[n-1].next == "" {
			return nil, false
		}
		switch sub := step.Sub[0]; {
		case sub.Op == syntax.OpAnyChar, sub.Op == syntax.OpAnyCharNotNL:
			p.open, p.tail = true, tail{low, sub.Op == syntax.OpAnyChar}
		// The class of all characters except '/'.
		case sub.Op == syntax.OpCharClass && slices.Equal(sub.Rune, []rune{0, '/' - 1, '/' + 1, utf8.MaxRune}):
			p.wildcards = append(p.wildcards, wildcard{least: low})
		default:
			return nil, false
		}
	}
	return p, true
}

// append adds text to the fixed text at the end of p.
func (p *pathSegments) append(text string) {
	if len(p.wildcards) == 0 {
		p.head += text
		return
	}
	h := &p.wildcards[len(p.wildcards)-1]
	// The text after a wildcard belongs to its segment up to the next '/'.
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

// literal returns the text that step matches. It returns false if step may match different
// texts.
func literal(step *syntax.Regexp) (string, bool) {
	if step.Op != syntax.OpLiteral || step.Flags&syntax.FoldCase != 0 {
		return "", false
	}
	var b strings.Builder
	for _, r := range step.Rune {
		if r == utf8.RuneError {
			return "", false // U+FFFD also matches invalid UTF-8
		}
		b.WriteRune(r)
	}
	return b.String(), true
}

// repeats returns how often step must repeat at least: 0 for * and 1 for +. For other steps it
// returns false.
func repeats(step *syntax.Regexp) (low int, ok bool) {
	if step.Op == syntax.OpPlus {
		return 1, true
	}
	return 0, step.Op == syntax.OpStar
}
