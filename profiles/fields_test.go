package profiles

import (
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// httpFields is a layer.Header with canonical names.
type httpFields http.Header

func (f httpFields) Get(name string) string      { return http.Header(f).Get(name) }
func (f httpFields) Values(name string) []string { return http.Header(f).Values(name) }

func (f httpFields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, values := range f {
			for _, v := range values {
				if !yield(name, v) {
					return
				}
			}
		}
	}
}

func compiled(t testing.TB, m Match) matcher {
	t.Helper()
	c, err := compileMatch(m, noDrop(t))
	require.NoError(t, err)
	return c
}

func TestHeader(t *testing.T) {
	header := httpFields{
		"X-Tenant": {"blue", "green"},
		"X-One":    {"Blue"},
		"X-Size":   {"-7"},
		"X-Empty":  {""},
		"Cookie":   {"a=1", "b=2"},
	}
	for _, tt := range []struct {
		what string
		name string
		text StringMatch
		want bool
	}{
		{"one line", "x-one", Exact("Blue"), true},
		{"case of the value", "x-one", Exact("blue"), false},
		{"case of the name", "X-ONE", Exact("Blue"), true},
		{"several lines have one value", "x-tenant", Exact("blue, green"), true},
		{"one of several lines", "x-tenant", Exact("blue"), false},
		{"lines of a cookie", "cookie", Exact("a=1; b=2"), true},
		{"begin", "x-tenant", Prefix("bl"), true},
		{"begin of the second line", "x-tenant", Prefix("gr"), false},
		{"end", "x-tenant", Suffix("een"), true},
		{"end of the first line", "x-tenant", Suffix("blue"), false},
		{"contains", "x-tenant", Contains("e, g"), true},
		{"contains the end", "x-tenant", Contains("green"), true},
		{"contains not", "x-tenant", Contains("greens"), false},
		{"expression", "x-tenant", Regex("b.*n"), true},
		{"expression is anchored", "x-tenant", Regex("lu|ree"), false},
		{"expression is grouped", "x-one", Regex("lu|Blue"), true},
		{"in the range", "x-size", Range{-7, 0}, true},
		{"below the range", "x-size", Range{-6, 0}, false},
		{"above the range", "x-size", Range{-9, -8}, false},
		{"not a number", "x-one", Range{-9, 9}, false},
		{"case is ignored", "x-one", IgnoreCase{Exact("bLUE")}, true},
		{"case of the begin", "x-one", IgnoreCase{Prefix("bL")}, true},
		{"case of the end", "x-one", IgnoreCase{Suffix("LUE")}, true},
		{"case of a part", "x-one", IgnoreCase{Contains("LU")}, true},
		{"case of an expression", "x-one", IgnoreCase{Regex("b.+E")}, true},
		{"another value in any case", "x-one", IgnoreCase{Exact("glue")}, false},
		{"present", "x-tenant", AnyValue{}, true},
		{"absent", "x-other", AnyValue{}, false},
		{"absent is not empty", "x-other", Exact(""), false},
		{"absent matches no expression", "x-other", Regex(".*"), false},
		{"present and empty", "x-empty", AnyValue{}, true},
		{"empty", "x-empty", Exact(""), true},
		{"empty, and an expression", "x-empty", Regex(""), true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			m := compiled(t, Header{Name: tt.name, Value: tt.text})
			require.Equal(t, needHeader, m.needs())
			assert.Equal(t, tt.want, m.holds(facts{header: header}))
		})
	}
}

func TestSourceIP(t *testing.T) {
	m := compiled(t, SourceIP{netip.MustParsePrefix("10.0.0.0/8")})
	require.Equal(t, needSource, m.needs())
	assert.Equal(t, "source in 10.0.0.0/8", m.String())
	for addr, want := range map[string]bool{"10.1.2.3": true, "11.0.0.1": false, "fd00::1": false} {
		assert.Equal(t, want, m.holds(facts{source: netip.MustParseAddr(addr)}), addr)
	}
	assert.False(t, m.holds(facts{}), "unknown")
	_, err := compileMatch(SourceIP{}, noDrop(t))
	require.EqualError(t, err, "source: the range of addresses is not valid")
}

// With AnyLine, each line is a value, as in linkerd's proxy.
func TestHeaderAnyLine(t *testing.T) {
	fields := facts{header: httpFields{"X-Tenant": {"blue", "green"}}}
	for text, want := range map[string]bool{"blue": true, "green": true, "blue, green": false, "red": false} {
		assert.Equal(t, want, compiled(t, Header{Name: "x-tenant", Value: Exact(text), AnyLine: true}).holds(fields), text)
	}
}

func TestHeaderString(t *testing.T) {
	for text, m := range map[string]StringMatch{
		`header "X-A" is "v" in any case`: IgnoreCase{Exact("v")},
		`header "X-A" contains "v"`:       Contains("v"),
		`header "X-A" is from 1 to 9`:     Range{1, 9},
		`header "X-A" is present`:         IgnoreCase{AnyValue{}},
	} {
		assert.Equal(t, text, compiled(t, Header{Name: "x-a", Value: m}).String())
	}
}

func TestHost(t *testing.T) {
	for _, tt := range []struct {
		text    StringMatch
		yes, no []string
	}{
		{Exact("Books.example"), []string{"books.example", "BOOKS.EXAMPLE:80", "books.example:", "books.example.:80"}, []string{"", ":80", "xbooks.example"}},
		{Exact("books.example."), []string{"books.example", "books.example."}, []string{"books.example.x"}},
		{Suffix(".Example"), []string{"a.example", "a.b.EXAMPLE.:80"}, []string{"example", ".example", "a.examples"}},
		{Exact("::1"), []string{"[::1]", "[::1]:80"}, []string{"[::2]:80", "[::1]x"}},
		{Prefix("API."), []string{"api.example:80", "Api.x"}, []string{"api", "www.api.example"}},
		{Regex("(api|www)[.]example"), []string{"api.example", "WWW.example:1"}, []string{"api.example.org", "x.www.example"}},
		{AnyValue{}, []string{"a", "a:80"}, []string{"", ":80"}},
	} {
		m := compiled(t, Host{tt.text})
		require.Equal(t, needAuthority, m.needs())
		for _, authority := range tt.yes {
			assert.True(t, m.holds(facts{authority: authority}), "%v: %q", m, authority)
		}
		for _, authority := range tt.no {
			assert.False(t, m.holds(facts{authority: authority}), "%v: %q", m, authority)
		}
	}
}

func TestQuery(t *testing.T) {
	for _, tt := range []struct {
		match   Query
		yes, no []string
	}{
		{Query{"v", Exact("1")}, []string{"v=1", "a=b&v=1", "v=2&v=1", "%76=%31", "&&v=1&"}, []string{"", "v", "v=", "v=11", "V=1", "xv=1", "v=1;", "v=1%"}},
		{Query{"v", Exact("")}, []string{"v", "v=", "v=1&v"}, []string{"", "v=1", "vv"}},
		{Query{"a b", Exact("c+d e")}, []string{"a+b=c%2Bd+e", "a%20b=c%2bd%20e"}, []string{"a+b=c+d+e"}},
		{Query{"v", Prefix("é")}, []string{"v=%C3%A9t", "v=é"}, []string{"v=%C3", "v=e", "v=%C3%A9%"}},
		{Query{"v", Regex("a|b b")}, []string{"v=a", "v=b+b", "v=%61"}, []string{"v=ab", "v=b", "v=%zz"}},
		{Query{"v", AnyValue{}}, []string{"v", "v=", "v=1", "a&v&b", "v==="}, []string{"", "a", "v=%", "v=%4", "v=;"}},
	} {
		m := compiled(t, tt.match)
		require.Equal(t, needQuery, m.needs())
		for _, query := range tt.yes {
			assert.True(t, m.holds(facts{query: query}), "%v: %q", m, query)
		}
		for _, query := range tt.no {
			assert.False(t, m.holds(facts{query: query}), "%v: %q", m, query)
		}
	}
}

// FuzzQuery: a parameter exists if net/url finds it.
func FuzzQuery(f *testing.F) {
	for _, seed := range [][3]string{
		{"a=1&b=2", "a", "1"}, {"a=%31", "a", "1"}, {"a=+", "a", " "}, {"a;b=1", "b", "1"}, {"a=%", "a", "%"}, {"a&a=", "a", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, query, name, want string) {
		if name == "" {
			return
		}
		values, _ := url.ParseQuery(query)
		var exact, prefix, regex bool
		for _, v := range values[name] {
			exact = exact || v == want
			prefix = prefix || strings.HasPrefix(v, want)
			regex = regex || strings.Contains(v, "a")
		}
		fs := facts{query: query}
		require.Equal(t, exact, compiled(t, Query{name, Exact(want)}).holds(fs))
		require.Equal(t, regex, compiled(t, Query{name, Regex("(?s).*a.*")}).holds(fs))
		require.Equal(t, values.Has(name), compiled(t, Query{name, AnyValue{}}).holds(fs))
		if want != "" {
			require.Equal(t, prefix, compiled(t, Query{name, Prefix(want)}).holds(fs))
		}
	})
}

func TestGRPC(t *testing.T) {
	for _, tt := range []struct {
		match   GRPC
		yes, no []string
	}{
		{GRPC{"books.Books", "Get"}, []string{"/books.Books/Get"}, []string{"/books.Books/List", "/books.Books/Get/", "/x/Get", "books.Books/Get", "/books.Books", ""}},
		{GRPC{"books.Books", ""}, []string{"/books.Books/Get", "/books.Books/List"}, []string{"/books.Books/", "/books.Books", "/books.Booksy/Get", "/books.Books/Get/x"}},
		{GRPC{"", "Get"}, []string{"/books.Books/Get", "/x/Get"}, []string{"//Get", "/Get", "/a/b/Get", "/x/Gets"}},
		{GRPC{}, []string{"/a/b"}, []string{"", "/", "/a", "/a/", "//b", "/a/b/c", "/a/b/"}},
	} {
		m := compiled(t, tt.match)
		for _, path := range tt.yes {
			assert.True(t, m.holds(facts{path: path}), "%v: %q", m, path)
		}
		for _, path := range tt.no {
			assert.False(t, m.holds(facts{path: path}), "%v: %q", m, path)
		}
	}
}

func TestPathPrefix(t *testing.T) {
	for _, tt := range []struct {
		match   PathPrefix
		yes, no []string
	}{
		{"/a", []string{"/a", "/a/", "/a/b", "/a//"}, []string{"/ab", "/", "", "a", "/A", "/b/a"}},
		{"/a/", []string{"/a", "/a/", "/a/b"}, []string{"/ab"}},
		{"/a/b", []string{"/a/b", "/a/b/c"}, []string{"/a", "/a/bc"}},
		{"/", []string{"/", "/a", "//"}, []string{"", "*"}},
		{"/a.*", []string{"/a.*", "/a.*/b"}, []string{"/ab", "/a"}},
	} {
		m := compiled(t, tt.match)
		for _, path := range tt.yes {
			assert.True(t, m.holds(facts{path: path}), "%v: %q", m, path)
		}
		for _, path := range tt.no {
			assert.False(t, m.holds(facts{path: path}), "%v: %q", m, path)
		}
	}
}

func TestLeafInvalid(t *testing.T) {
	type foreign struct{ StringMatch }
	for _, tt := range []struct {
		match Match
		err   string
	}{
		{Header{Name: "", Value: AnyValue{}}, `header "": the name is not a token`},
		{Header{Name: ":path", Value: AnyValue{}}, `header ":path": the name is not a token`},
		{Header{Name: "x-a", Value: nil}, `header "x-a": no value: AnyValue holds for any`},
		{Header{Name: "x-a", Value: Prefix("")}, `header "x-a": prefix is empty`},
		{Header{Name: "x-a", Value: Contains("")}, `header "x-a": contains is empty`},
		{Header{Name: "x-a", Value: Range{2, 1}}, `header "x-a": range 2 to 1: the first number is above the last`},
		{Header{Name: "x-a", Value: IgnoreCase{}}, `header "x-a": no value`},
		{Header{Name: "x-a", Value: Regex("(")}, `header "x-a": regex "(": error parsing regexp: missing closing )`},
		{Header{Name: "x-a", Value: Regex("a)|(b")}, `header "x-a": regex "a)|(b": error parsing regexp: unexpected )`},
		{Header{Name: "x-a", Value: foreign{}}, `header "x-a": profiles.foreign is not a condition on a value`},
		{Query{"", AnyValue{}}, "query: the name of the parameter is empty"},
		{Query{"q", nil}, `query parameter "q": no value`},
		{Host{nil}, "host: no value"},
		{Host{Exact("")}, `host "" is not a name or an address`},
		{Host{Exact("a:80")}, `host "a:80" is not a name or an address without port`},
		{Host{Exact("[::1]")}, "without port and brackets"},
		{GRPC{"/a", "b"}, `gRPC service "/a", method "b": a name has a '/'`},
		{GRPC{"a", "b/c"}, `a name has a '/'`},
		{GRPC{" a", ""}, "gRPC: space around the name"},
		{PathPrefix(""), `path prefix "" does not begin with '/'`},
		{PathPrefix("a"), `path prefix "a" does not begin with '/'`},
		{PathPrefix("/a?b"), `path prefix "/a?b" is more than a path`},
	} {
		_, err := compileMatch(tt.match, noDrop(t))
		require.ErrorContains(t, err, tt.err)
	}
}
