package profiles

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPath has the anchoring of linkerd.
func TestPath(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		yes, no []string
	}{
		{"/a", []string{"/a"}, []string{"/a/", "/b/a", "/ab", "", "/A"}},
		{"^/a$", []string{"/a"}, []string{"/a/", "x/a"}},
		{"^/a", []string{"/a"}, []string{"/ab"}},
		{"/a$", []string{"/a"}, []string{"x/a"}},
		{"  /a\t\n", []string{"/a"}, []string{" /a"}},
		{"\u00a0/a\u3000", []string{"/a"}, nil},
		{"", []string{""}, []string{"/"}},
		{"^", []string{""}, []string{"/"}},
		{"$", []string{""}, []string{"/"}},
		{"/books/[^/]*", []string{"/books/", "/books/1"}, []string{"/books/1/x"}},
		{"/a.*", []string{"/a", "/abc"}, []string{"/b/a"}},
		{"/v1.json", []string{"/v1.json", "/v1xjson"}, nil},
		{`/v1\.json`, []string{"/v1.json"}, []string{"/v1xjson"}},
		{`\Q/a.b\E`, []string{"/a.b"}, []string{"/axb"}},

		// No group around it: begins with the first, or ends with the last.
		{"/a|/b", []string{"/a", "/ab/c", "/x/b", "/b"}, []string{"/x/a/y", "/b/x"}},
		{"(/a|/b)", []string{"/a", "/b"}, []string{"/ab/c", "/x/b"}},
		// A dollar sign is an anchor by its looks alone.
		{`/a\$`, []string{"/a$", "/a$b"}, []string{"/a", "x/a$"}},
		{`/a\\$`, []string{`/a\`}, []string{`/a\b`}},
		{`\Q/a$`, []string{"/a$", "/a$b"}, []string{"/a"}},
		// A caret in a group is at the start of the path.
		{"(^/a)", []string{"/a"}, []string{"/b"}},

		{"^*/a", []string{"/a", "x/a"}, []string{"/ab"}},

		{"(?i)/a", []string{"/a", "/A"}, nil},
		{"(?i)/1", []string{"/1"}, []string{"/2"}},
		{"/ä", []string{"/ä"}, []string{"/a"}},
		{"/\ufffd", []string{"/\ufffd", "/\xff"}, []string{"/"}},
		{"/a/.*", []string{"/a/", "/a/b/c", "/a/\xff"}, []string{"/a", "/a/b\nc"}},
		{"(?s)/a/.*", []string{"/a/b\nc"}, []string{"/a"}},
		{"/a/.+", []string{"/a/b"}, []string{"/a/"}},
		{`/[ab]\$`, []string{"/a$", "/a$/b"}, []string{"/a"}},
		{"(?m)/a", []string{"/a", "/a\n/b"}, []string{"/b\n/a"}},
	} {
		t.Run(tt.pattern, func(t *testing.T) {
			f, err := Path(tt.pattern).compile()
			require.NoError(t, err)
			x := new(index)
			x.add(0, f)
			for _, path := range tt.yes {
				assert.Contains(t, x.candidates(path), int32(0), "%q", path)
				assert.True(t, f.holds(on("GET", path)), "%q", path)
			}
			for _, path := range tt.no {
				assert.False(t, f.holds(on("GET", path)), "%q", path)
			}
		})
	}
}

// Fixed strings are compared as such.
func TestPathLiteral(t *testing.T) {
	for pattern, want := range map[string]string{
		"/a":                            "/a",
		"^/a$":                          "/a",
		"":                              "",
		"/emojivoto.v1.VotingService/V": "no", // '.' is any character
		`/emojivoto\.v1\.Voting/V`:      "/emojivoto.v1.Voting/V",
		`\Q/a+b\E`:                      "/a+b",
		"/a[.]b":                        "/a.b",
		"(/a)":                          "/a",
		"(^/(a)$)":                      "/a",
		"(?i)/a":                        "no",
		"/a|/b":                         "no",
		`/a\$`:                          "no",
		"/a*":                           "no",
		"/a/[^/]*":                      "no",
	} {
		m, err := Path(pattern).compile()
		require.NoError(t, err)
		got, ok := m.(exactPath)
		assert.Equal(t, want != "no", ok, pattern)
		if ok {
			assert.Equal(t, want, got.want, pattern)
		}
	}
}

// maxFuzz is the maximum length of a pattern and a path together. The naive expression takes quadratic
// time, and the fuzzer reports a call of ten seconds as a failure.
const maxFuzz = 500

// FuzzPath: a compiled path matches the same paths as the anchored expression.
func FuzzPath(f *testing.F) {
	for _, seed := range [][2]string{
		{"/a", "/a"}, {"^/a$", "/a"}, {" /a|/b ", "/ax"}, {`/a\$`, "/a$x"}, {`\Q/a$`, "/a$"},
		{"/\ufffd", "/\xff"}, {"(?i)/K", "/\u212a"}, {"(?m)a", "a\nb"}, {"(?s).", "\n"}, {"/a{2,}", "/aaa"},
		{"(", "("}, {"[[:alpha:]]", "a"}, {`\pL\z`, "ä"}, {"(?:/a)", "/a"}, {"(?U)a+?", "aa"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if len(pattern)+len(path) > maxFuzz {
			return
		}
		match, err := Path(pattern).compile()
		re, naiveErr := naiveRegexp(pattern)
		require.Equal(t, naiveErr == nil, err == nil, "%q: %v, %v", pattern, err, naiveErr)
		if err == nil {
			require.Equal(t, re.MatchString(path), match.holds(on("GET", path)), "%q on %q", pattern, path)
			// The pattern as a request path, if it is a literal.
			require.Equal(t, re.MatchString(pattern), match.holds(on("GET", pattern)), "%q on itself", pattern)
		}
	})
}
