package profiles

import (
	"errors"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// naive is the definition of a match, written down with as little thought as
// possible.
func naive(m Match, f facts) (holds, valid bool) {
	switch m := m.(type) {
	case All:
		holds = true
		for _, member := range m {
			if h, ok := naive(member, f); ok {
				holds = holds && h
			}
		}
		return holds, true
	case Any:
		for _, member := range m {
			if h, ok := naive(member, f); ok {
				holds = holds || h
			}
		}
		return holds, true
	case Not:
		if m.Match == nil {
			return false, false
		}
		h, ok := naive(m.Match, f)
		return !h, ok
	case Path:
		re, err := naiveRegexp(string(m))
		return err == nil && re.MatchString(f.path), err == nil
	case Method:
		return string(m) == f.method, isToken(string(m))
	}
	return naiveLeaf(m, f)
}

func naiveLeaf(m Match, f facts) (holds, valid bool) {
	switch m := m.(type) {
	case PathPrefix:
		short := strings.TrimSuffix(string(m), "/")
		holds = f.path == short || strings.HasPrefix(f.path, short+"/")
		return holds && strings.HasPrefix(f.path, "/"), strings.HasPrefix(string(m), "/") && !strings.ContainsAny(string(m), "?#")
	case GRPC:
		parts := strings.Split(f.path, "/")
		holds = len(parts) == 3 && parts[0] == "" && parts[1] != "" && parts[2] != "" &&
			(m.Service == "" || m.Service == parts[1]) && (m.Method == "" || m.Method == parts[2])
		return holds, compileErr(m) == nil
	case Header:
		var lines []string
		for name, v := range f.header.All() {
			if strings.EqualFold(name, m.Name) {
				lines = append(lines, v)
			}
		}
		return len(lines) > 0 && naiveText(m.Value, strings.Join(lines, ", ")), compileErr(m) == nil
	case Query:
		values, _ := url.ParseQuery(f.query)
		return slices.ContainsFunc(values[m.Name], func(v string) bool { return naiveText(m.Value, v) }), compileErr(m) == nil
	case Host:
		host := strings.TrimSuffix((&url.URL{Host: strings.ToLower(f.authority)}).Hostname(), ".")
		return host != "" && naiveText(m.Value, host), compileErr(m) == nil
	}
	return false, false
}

func compileErr(l leaf) error {
	_, err := l.compile()
	return err
}

// naiveText is for values of the generator below, which are in lower case.
func naiveText(t StringMatch, v string) bool {
	switch t := t.(type) {
	case Exact:
		return v == string(t)
	case Prefix:
		return strings.HasPrefix(v, string(t))
	case Suffix:
		return strings.HasSuffix(v, string(t)) && v != string(t)
	case Regex:
		return regexp.MustCompile(`\A(?:` + string(t) + `)\z`).MatchString(v)
	}
	return true
}

func naiveRegexp(s string) (*regexp.Regexp, error) {
	s = strings.TrimSpace(s)
	if s == "" || s[0] != '^' {
		s = "^" + s
	}
	if s[len(s)-1] != '$' {
		s += "$"
	}
	if _, err := parseRegex(s, syntax.Perl); errors.Is(err, errTooLarge) {
		return nil, err
	}
	return regexp.Compile(s)
}

var leaves = rapid.OneOf(
	rapid.SampledFrom([]Match{
		nil, Status{200, 299},
		Path(""), Path("/"), Path("/a"), Path("/a|/b"), Path("/[ab]"), Path("/.*"), Path(`\/a`), Path("(?i)/A"), Path("("), Path("[z-a]"),
		Method("GET"), Method("PUT"), Method("get"), Method(""), Method("G T"), Method("é"),
	}),
	rapid.SampledFrom([]Match{
		PathPrefix("/"), PathPrefix("/a"), PathPrefix("/a/b/"), PathPrefix("a"), Path("/a/[^/]*"), Path("/[^/]+/b"), Path("/a/[a-z]+/c"), Path(".*b"),
		GRPC{"books.v1", "Get"}, GRPC{"books.v1", ""}, GRPC{"", "Get"}, GRPC{"", "b"}, GRPC{}, GRPC{"/", ""},
		Header{Name: "x-v", Value: Exact("1")}, Header{Name: "X-V", Value: AnyValue{}}, Header{Name: "x-v", Value: Regex("1|2")}, Header{Name: "x-v", Value: nil},
		Query{"v", Exact("1")}, Query{"v", AnyValue{}}, Query{"v", Prefix("2")}, Host{Exact("a")}, Host{Regex("[^b]")}, Host{AnyValue{}},
		Host{Exact("x.b")}, Host{Suffix(".b")}, Host{Suffix("b")}, Host{Suffix(".x.b")},
	}),
)

func trees() *rapid.Generator[Match] {
	return rapid.Custom(func(t *rapid.T) Match { return tree(t, rapid.IntRange(0, 4).Draw(t, "depth")) })
}

func tree(t *rapid.T, depth int) Match {
	if depth == 0 {
		return leaves.Draw(t, "leaf")
	}
	members := make([]Match, rapid.IntRange(0, 3).Draw(t, "members"))
	for i := range members {
		members[i] = tree(t, rapid.IntRange(0, depth-1).Draw(t, "depth"))
	}
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		return All(members)
	case 1:
		return Any(members)
	}
	return Not{tree(t, depth-1)}
}
