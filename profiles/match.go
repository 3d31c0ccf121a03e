package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// Match is a condition: a tree whose leaves are [Path], [PathPrefix], [Method],
// [Header], [Query], [Host] and [GRPC] where it is about requests, and [Status],
// [GRPCStatus] and [Trailer] where it is about responses. [All], [Any] and [Not]
// join leaves of either kind; a leaf of the other kind is invalid.
//
// Invalid members of All and Any are left out of them. A Not of something
// invalid is invalid itself. A tree must not contain itself.
type Match interface {
	isMatch()
}

// The kinds of Match.
type (
	// All holds if every member does. An empty All holds for every request;
	// for responses it is invalid.
	All []Match

	// Any holds if one of its members does. An empty Any holds for no request;
	// for responses it is invalid.
	Any []Match

	// Not holds if its member does not.
	Not struct{ Match Match }

	// Path is a regular expression for the path of a request, without the
	// query. Space around it is cut off, and it is anchored at both ends as
	// linkerd does it: a '^' is put in front if there is none, and a '$' at
	// the end if there is none, without a group around what stands between.
	// So "/a|/b" means "^/a|/b$": begins with /a, or ends with /b; write
	// "(/a|/b)" for one of the two.
	//
	// The dialect is that of package regexp. It differs from linkerd's in what
	// paths rarely have: \d, \w and \s are ASCII only, "&&" and "--" in a
	// class have no meaning, and a repeat count is at most 1000. An expression
	// that is longer than 10 000 bytes, or more than 10 000 instructions once its
	// repeats are written out ("[^/]{1,64}" is 128), is invalid, whereas linkerd
	// allows for 10 MiB. And a route is left out with which the repeats of a
	// profile make more than 20 000 instructions beyond what is written.
	Path string

	// PathPrefix holds for paths whose first segments it is: "/a" for "/a",
	// "/a/" and "/a/b", and not for "/ab". A '/' at its end makes no
	// difference. It begins with '/', has no query, and is compared with the
	// path as that was sent, percent signs and all.
	PathPrefix string

	// Method is the method of a request, exactly as sent. It must be a token
	// as HTTP defines it.
	Method string

	// Header holds if one of the values of the request header field does.
	// Name must be a token; its case does not matter. The host of a request
	// is not among its header fields.
	Header struct {
		Name  string
		Value StringMatch
	}

	// Query holds if one of the values of the query parameter does. Names and
	// values are compared decoded, as net/url does it: '+' is a space, and
	// parameters that are badly encoded are not there. Name must not be empty.
	Query struct {
		Name  string
		Value StringMatch
	}

	// Host is a condition on the authority of a request, without the port and
	// the brackets of an IPv6 address. The case of letters does not matter.
	// Present holds if the request says its host.
	Host struct{ Value StringMatch }

	// GRPC holds for paths "/Service/Method" of two segments. An empty Service
	// or Method stands for any; Service is with its package, "books.v1.Books".
	GRPC struct{ Service, Method string }

	// Status holds if the status of a response is from Min to Max, both
	// included. Both must be from 100 to 999; there is no open end.
	Status struct{ Min, Max int }

	// GRPCStatus holds if the gRPC status of a response is from Min to Max, both
	// included, and at most 16. It is in the trailers, or, of a response that has
	// nothing else, in the header, which comes first.
	GRPCStatus struct{ Min, Max uint32 }

	// Trailer holds if one of the values of the trailer field of a response
	// does. Name must be a token; its case does not matter. Of a response whose
	// gRPC status is in the header the header is the trailers.
	Trailer struct {
		Name  string
		Value StringMatch
	}
)

func (All) isMatch()        {}
func (Any) isMatch()        {}
func (Not) isMatch()        {}
func (Path) isMatch()       {}
func (PathPrefix) isMatch() {}
func (Method) isMatch()     {}
func (Header) isMatch()     {}
func (Query) isMatch()      {}
func (Host) isMatch()       {}
func (GRPC) isMatch()       {}
func (Status) isMatch()     {}
func (GRPCStatus) isMatch() {}
func (Trailer) isMatch()    {}

// pathIs is a path that is a fixed string: comparing those is many times
// cheaper than running a regular expression.
type pathIs struct {
	want, source string
}

func (p pathIs) holds(f facts) bool { return f.path == p.want }
func (pathIs) needs() needs         { return 0 }
func (p pathIs) String() string     { return fmt.Sprintf("path %q", p.source) }

// pathMatches is a path for which it takes a regular expression.
type pathMatches struct {
	re     *regexp.Regexp
	key    key    // what the paths that match look like
	suffix string // what they end with: ".*/x" would be slow to find that out
	source string
}

func (p *pathMatches) holds(f facts) bool {
	return strings.HasSuffix(f.path, p.suffix) && p.re.MatchString(f.path)
}

func (*pathMatches) needs() needs     { return 0 }
func (p *pathMatches) String() string { return fmt.Sprintf("path %q", p.source) }

func (p Path) compile() (matcher, error) {
	tree, err := p.parse()
	if err != nil {
		return nil, err
	}
	steps, begun, ended := flatten(tree)
	if begun && ended {
		if s, ok := segmentsOf(steps); ok && len(s.holes) == 0 && !s.open {
			return pathIs{s.head, string(p)}, nil
		} else if ok {
			s.source = string(p)
			return s, nil
		}
	}
	re, err := regexp.Compile(anchor(string(p)))
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", string(p), err)
	}
	m := &pathMatches{re: re, source: string(p), key: key{open: true, parts: []string{""}}}
	if begun {
		m.key = keyOf(steps, ended)
	}
	if n := len(steps); ended && n > 0 {
		m.suffix, _ = literal(steps[n-1])
	}
	return m, nil
}

func (p Path) parse() (*syntax.Regexp, error) {
	tree, err := parseRegex(anchor(string(p)), syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("path %s: %w", quote(string(p)), err)
	}
	return tree, nil
}

// anchor ties a pattern to both ends of the path. It looks at the characters
// alone: `a|b` becomes `^a|b$`, and `a\$` stays open at its end. That is what
// linkerd does, and profiles may rely on it.
func anchor(pattern string) string {
	pattern = strings.TrimSpace(pattern)
	if !strings.HasPrefix(pattern, "^") {
		pattern = "^" + pattern
	}
	if !strings.HasSuffix(pattern, "$") {
		pattern += "$"
	}
	return pattern
}

// flatten returns the parts of an expression that match one after the other,
// without the anchors at its ends, and whether it has those.
func flatten(tree *syntax.Regexp) (steps []*syntax.Regexp, begun, ended bool) {
	steps = appendSteps(nil, tree.Simplify())
	for ; len(steps) > 0 && steps[0].Op == syntax.OpBeginText; begun = true {
		steps = steps[1:]
	}
	for ; len(steps) > 0 && steps[len(steps)-1].Op == syntax.OpEndText; ended = true {
		steps = steps[:len(steps)-1]
	}
	return steps, begun, ended
}

func appendSteps(steps []*syntax.Regexp, tree *syntax.Regexp) []*syntax.Regexp {
	switch tree.Op {
	case syntax.OpEmptyMatch:
	case syntax.OpCapture, syntax.OpConcat:
		for _, sub := range tree.Sub {
			steps = appendSteps(steps, sub)
		}
	default:
		steps = append(steps, tree)
	}
	return steps
}

// pathBegins is a compiled PathPrefix.
type pathBegins string

func (p PathPrefix) compile() (matcher, error) {
	switch {
	case !strings.HasPrefix(string(p), "/"):
		return nil, fmt.Errorf("path prefix %q does not begin with '/'", string(p))
	case strings.ContainsAny(string(p), "?#"):
		return nil, fmt.Errorf("path prefix %q is more than a path", string(p))
	}
	return pathBegins(strings.TrimSuffix(string(p), "/")), nil
}

func (p pathBegins) holds(f facts) bool {
	rest, ok := strings.CutPrefix(f.path, string(p))
	if !ok || rest == "" {
		return ok && p != ""
	}
	return rest[0] == '/'
}

func (pathBegins) needs() needs     { return 0 }
func (p pathBegins) String() string { return fmt.Sprintf("path prefix %q", string(p)+"/") }

// grpcCall is a compiled GRPC.
type grpcCall struct{ service, method string }

func (g GRPC) compile() (matcher, error) {
	if strings.ContainsAny(g.Service, "/?") || strings.ContainsAny(g.Method, "/?") {
		return nil, fmt.Errorf("gRPC service %q, method %q: a name has a '/' or '?'", g.Service, g.Method)
	}
	if strings.TrimSpace(g.Service) != g.Service || strings.TrimSpace(g.Method) != g.Method {
		return nil, errors.New("gRPC: space around the name of a service or method")
	}
	return grpcCall{g.Service, g.Method}, nil
}

func (g grpcCall) holds(f facts) bool {
	if !strings.HasPrefix(f.path, "/") {
		return false
	}
	service, method, ok := strings.Cut(f.path[1:], "/")
	if !ok || service == "" || method == "" || strings.IndexByte(method, '/') >= 0 {
		return false
	}
	return (g.service == "" || g.service == service) && (g.method == "" || g.method == method)
}

func (grpcCall) needs() needs { return 0 }

func (g grpcCall) String() string {
	return fmt.Sprintf("gRPC service %q, method %q", cmp.Or(g.service, "*"), cmp.Or(g.method, "*"))
}

type queryHas struct {
	name  string
	value text
}

func (q Query) compile() (matcher, error) {
	if q.Name == "" {
		return nil, errors.New("query: the name of the parameter is empty")
	}
	value, err := compileText(q.Value, false)
	if err != nil {
		return nil, fmt.Errorf("query parameter %q: %w", q.Name, err)
	}
	return queryHas{q.Name, value}, nil
}

// holds reads the query as url.ParseQuery does, without its map.
func (q queryHas) holds(f facts) bool {
	for rest := f.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		name, value, _ := strings.Cut(pair, "=")
		left, ok := cutDecoded(name, q.name)
		if !ok || left != "" || strings.IndexByte(pair, ';') >= 0 || !wellEncoded(value) {
			continue
		}
		if q.holdsFor(value) {
			return true
		}
	}
	return false
}

// holdsFor compares a value that is well encoded. Only expressions need it
// decoded as a whole.
func (q queryHas) holdsFor(encoded string) bool {
	switch q.value.kind {
	case textExact:
		left, ok := cutDecoded(encoded, q.value.want)
		return ok && left == ""
	case textPrefix:
		_, ok := cutDecoded(encoded, q.value.want)
		return ok
	case textRegex:
		value, err := url.QueryUnescape(encoded)
		return err == nil && q.value.holds(value)
	case textPresent:
	}
	return true
}

func (queryHas) needs() needs     { return needQuery }
func (q queryHas) String() string { return fmt.Sprintf("query parameter %q %v", q.name, q.value) }

// cutDecoded returns what follows prefix in the encoded text s, which has it
// decoded.
func cutDecoded(s, prefix string) (rest string, ok bool) {
	for i := range len(prefix) {
		c, n := decodeByte(s)
		if n == 0 || c != prefix[i] {
			return s, false
		}
		s = s[n:]
	}
	return s, true
}

// decodeByte returns the first byte of s, decoded, and how long it is encoded:
// 0 at the end of s, and if it is badly encoded.
func decodeByte(s string) (byte, int) {
	switch {
	case s == "":
		return 0, 0
	case s[0] == '+':
		return ' ', 1
	case s[0] != '%':
		return s[0], 1
	case len(s) < 3:
		return 0, 0
	}
	high, low := hexDigit(s[1]), hexDigit(s[2])
	if high < 0 || low < 0 {
		return 0, 0
	}
	return byte(high<<4 | low), 3
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// wellEncoded reports whether each '%' begins an encoded byte.
func wellEncoded(s string) bool {
	for {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			return true
		}
		_, n := decodeByte(s[i:])
		if n == 0 {
			return false
		}
		s = s[i+n:]
	}
}

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
