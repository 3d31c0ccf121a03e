package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

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
