package profiles

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPathSegments checks which expressions need no regexp.
func TestPathSegments(t *testing.T) {
	for pattern, want := range map[string]bool{
		"/users/[^/]*":                 true,
		"/users/[^/]+/orders":          true,
		"/users/([^/]+)/orders":        true,
		"/v1/[^/]*/x/[^/]+":            true,
		"/v[^/]*/x":                    true,
		`/files/[^/]*\.json`:           true,
		`/files/[^/]+\.json/raw`:       true,
		"[^/]*":                        true,
		"/static/.*":                   true,
		"/static/.+":                   true,
		"/a/[^/]*/.*":                  true,
		"(?s)/.*":                      true,
		"/[^/]{1,}/x":                  true,
		"/[^/]+?/x":                    true,
		"/users/[^/]+[^/]*":            false, // two holes in a segment
		"/users/[^/]*-[^/]*":           false,
		"/users/[^/]*.*":               false, // the end of the wildcard is unknown
		"/a.*/b":                       false,
		"/users/[0-9]+":                false,
		"/users/[^/]?":                 false,
		"/users/[^/]{2}":               false,
		"/users/[^/?]+":                false,
		"(?i)/users/[^/]+":             false,
		"/users/[^/]*|/x":              false,
		"(?m)/users/[^/]*":             false,
		"/users/[^/]*\ufffd/x":         false,
		"/emojivoto.v1.Voting/[^/]*":   false, // '.' is any character
		`/emojivoto\.v1\.Voting/[^/]*`: true,
	} {
		m, err := Path(pattern).compile()
		require.NoError(t, err)
		_, ok := m.(*pathSegments)
		assert.Equal(t, want, ok, pattern)
	}
}

// patterns are expressions of the kind that profiles have, and near misses.
func patterns() *rapid.Generator[string] {
	piece := rapid.SampledFrom([]string{
		"/", "/a", "/b", "a", "b", "ab", "é", `\.`, ".", "[^/]*", "[^/]+", "/[^/]*", "/[^/]+", "/([^/]*)", "[^/]?", "[^/]{2}",
		".*", ".+", "(?s:.*)", "[ab]+", "[0-9]*", "(a|/b)", "(?i:A)", "(?m:^)", "$", "^", "|", `\b`, "[^/a]*", "[^a]*", "\n", "\ufffd", "(",
	})
	return rapid.Map(rapid.SliceOfN(piece, 0, 6), func(pieces []string) string { return strings.Join(pieces, "") })
}

func paths() *rapid.Generator[string] {
	piece := rapid.SampledFrom([]string{"/", "/a", "/b", "a", "b", "ab", "A", "é", ".", "7", "\n", "\xff", "\xc3", "\xa9"})
	return rapid.Map(rapid.SliceOfN(piece, 0, 8), func(pieces []string) string { return strings.Join(pieces, "") })
}

// A compiled path is equivalent to its expression, and its keys match every path for
// which it holds.
func TestPathModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := patterns().Draw(t, "pattern")
		re, err := naiveRegexp(pattern)
		if err != nil {
			return
		}
		m, err := Path(pattern).compile()
		require.NoError(t, err)
		x := new(index)
		x.add(0, m)
		for range 10 {
			path := paths().Draw(t, "path")
			require.Equal(t, re.MatchString(path), m.holds(on("GET", path)), "%q is a %T, on %q", pattern, m, path)
			if re.MatchString(path) {
				require.Contains(t, x.candidates(path), int32(0), "%q, a %T, is not found for %q", pattern, m, path)
			}
		}
	})
}

// candidates are the positions that a request may have, as search has them.
func (x *index) candidates(path string) []int32 {
	all := []int32{}
	var walk func(b *branch, path string)
	walk = func(b *branch, path string) {
		all = append(all, b.below...)
		if path == "" {
			all = append(all, b.here...)
		}
		for _, child := range b.children {
			if rest, ok := strings.CutPrefix(path, child.text); ok {
				walk(child, rest)
			}
		}
		if b.rest != nil {
			walk(b.rest, path[segmentEnd(path):])
		}
	}
	walk(&x.root, path)
	return all
}

func segmentEnd(path string) int {
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return i
	}
	return len(path)
}

// FuzzSegments joins fixed text and holes that the fuzzer chooses.
func FuzzSegments(f *testing.F) {
	f.Add("/users/", "/orders", "/users/7/orders", uint8(0))
	f.Add("/files/", ".json/raw", "/files/a.json/raw", uint8(1))
	f.Add("/", "", "//", uint8(2))
	f.Add("/a", "é", "/a\xc3\xa9", uint8(5))
	f.Fuzz(func(t *testing.T, a, b, path string, kind uint8) {
		if len(a)+len(b)+len(path) > maxFuzz {
			return
		}
		hole := []string{"[^/]*", "[^/]+", "([^/]*)", ".*", "[a-z]+"}[kind%5]
		pattern := a + hole + b + []string{"", "[^/]+", "/.*", "/.+"}[kind/5%4]
		re, err := naiveRegexp(pattern)
		if err != nil {
			return
		}
		m, err := Path(pattern).compile()
		require.NoError(t, err)
		x := new(index)
		x.add(0, m)
		for _, p := range []string{path, a + path + b, a + b, a + "x" + b, a + "x" + b + path, a + "é/" + b} {
			require.Equal(t, re.MatchString(p), m.holds(on("GET", p)), "%q is a %T, on %q", pattern, m, p)
			if re.MatchString(p) {
				require.NotEmpty(t, x.candidates(p), "%q on %q", pattern, p)
			}
		}
	})
}
