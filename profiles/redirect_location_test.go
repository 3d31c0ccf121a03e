package profiles

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// redirectTo returns where a redirect sends a request with the URI; "" if nowhere else.
func redirectTo(t *testing.T, r Redirect, uri string) string {
	t.Helper()
	require.NoError(t, r.Validate())
	scheme, rest, _ := strings.Cut(uri, "://")
	i := strings.IndexAny(rest+"/", "/?")
	authority, rest := rest[:i], rest[i:]
	path, query, _ := strings.Cut(rest, "?")
	from, known := locationOf(scheme, authority, path, query)
	require.True(t, known, uri)
	if to := r.apply(from); !to.equal(from) {
		return to.String()
	}
	return ""
}

func TestLocation(t *testing.T) {
	for _, tt := range []struct {
		what, from string
		r          Redirect
		to         string
	}{
		{"scheme", "http://web/a?b=c", Redirect{Scheme: "https"}, "https://web/a?b=c"},
		{"scheme, with a port", "http://web:8080/a", Redirect{Scheme: "https"}, "https://web/a"},
		{"scheme that it has, with a port", "http://web:8080/a", Redirect{Scheme: "http"}, "http://web/a"},
		{"scheme that it has", "https://web/a", Redirect{Scheme: "https"}, ""},
		{"scheme that it has, with its port", "https://web:443/a", Redirect{Scheme: "https"}, ""},
		{"scheme and port", "http://web/a", Redirect{Scheme: "https", Port: 8443}, "https://web:8443/a"},
		{"scheme and its port", "http://web:80/a", Redirect{Scheme: "https", Port: 443}, "https://web/a"},
		{"scheme of no place", "javascript://web/%0Aalert(1)", Redirect{Path: "/"}, "http://web/"},
		{"scheme, missing", "://web/a", Redirect{Host: "b"}, "http://b/a"},

		{"host", "http://a/x?y", Redirect{Host: "b.example.com"}, "http://b.example.com/x?y"},
		{"host, with a port", "http://a:8080/x", Redirect{Host: "b"}, "http://b:8080/x"},
		{"host, with the scheme's port", "https://a:443/x", Redirect{Host: "b"}, "https://b/x"},
		{"host, of another scheme's port", "http://a:443/x", Redirect{Host: "b"}, "http://b:443/x"},
		{"host and port", "http://a:8080/x", Redirect{Host: "b", Port: 81}, "http://b:81/x"},
		{"host that it has", "http://a/x", Redirect{Host: "A"}, ""},
		{"address", "http://a/x", Redirect{Host: "10.0.0.1"}, "http://10.0.0.1/x"},
		{"IPv6 address", "http://a:81/x", Redirect{Host: "::1"}, "http://[::1]:81/x"},
		{"of an IPv6 address", "http://[::1]:81/x", Redirect{Path: "/y"}, "http://[::1]:81/y"},
		{"of an IPv6 address without a port", "http://[::1]/x", Redirect{Port: 82}, "http://[::1]:82/x"},

		{"port", "http://a:8080/x", Redirect{Port: 81}, "http://a:81/x"},
		{"port that is the scheme's", "http://a:8080/x", Redirect{Port: 80}, "http://a/x"},
		{"port that it has", "http://a:8080/x", Redirect{Port: 8080}, ""},
		{"port that it has, as the scheme's", "http://a/x", Redirect{Port: 80}, ""},
		{"an empty port", "http://a:/x", Redirect{Path: "/y"}, "http://a/y"},

		{"path", "http://a/x/y?z=1", Redirect{Path: "/b"}, "http://a/b?z=1"},
		{"path with a query", "http://a/x?z=1", Redirect{Path: "/b?c=2"}, "http://a/b?c=2"},
		{"path without the query", "http://a/x?z=1", Redirect{Path: "/b?"}, "http://a/b"},
		{"path that it has", "http://a/x?z=1", Redirect{Path: "/x"}, ""},
		{"path and host", "http://a/x", Redirect{Path: "/b", Host: "b"}, "http://b/b"},

		{"prefix", "http://a/v1/books?a=b", Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}, "http://a/v2/books?a=b"},
		{"prefix alone", "http://a/v1", Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}, "http://a/v2"},
		{"prefix alone, with a slash", "http://a/v1/", Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}, "http://a/v2/"},
		{"prefix within a segment", "http://a/v10/books", Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}, ""},
		{"prefix that another begins with", "http://a/v", Redirect{OldPrefix: "/v1", NewPrefix: "/v2"}, ""},
		{"prefix that is not there, another host", "http://a/w", Redirect{OldPrefix: "/v1", NewPrefix: "/v2", Host: "b"}, "http://b/w"},
		{"prefix with a slash", "http://a/v1/books", Redirect{OldPrefix: "/v1/", NewPrefix: "/v2/"}, "http://a/v2/books"},
		{"prefix with a slash, alone", "http://a/v1", Redirect{OldPrefix: "/v1/", NewPrefix: "/v2/"}, "http://a/v2/"},
		{"prefix away", "http://a/v1/books", Redirect{OldPrefix: "/v1"}, "http://a/books"},
		{"prefix away, alone", "http://a/v1", Redirect{OldPrefix: "/v1"}, "http://a/"},
		{"prefix away, with a slash", "http://a/v1/", Redirect{OldPrefix: "/v1", NewPrefix: "/"}, "http://a/"},
		{"prefix of everything", "http://a/books", Redirect{OldPrefix: "/", NewPrefix: "/v1"}, "http://a/v1/books"},
		{"longer prefix", "http://a/v1/b/c", Redirect{OldPrefix: "/v1/b", NewPrefix: "/d"}, "http://a/d/c"},

		{"two slashes", "http://a//evil.com/x", Redirect{Scheme: "https"}, "https://a//evil.com/x"},
		{"two slashes after a prefix", "http://a/v1//evil.com", Redirect{OldPrefix: "/v1"}, "http://a//evil.com"},
		{"two slashes in a prefix", "http://a/v1/x", Redirect{OldPrefix: "/v1", NewPrefix: "//evil.com"}, "http://a//evil.com/x"},
		{"backslashes", `http://a/\evil.com`, Redirect{Scheme: "https"}, `https://a/\evil.com`},
		{"line breaks", "http://a/x\r\nSet-Cookie: y", Redirect{Scheme: "https"}, "https://a/x%0D%0ASet-Cookie:%20y"},
		{"a fragment in the query", "http://a/x?y#z\"", Redirect{Scheme: "https"}, `https://a/x?y%23z"`},
		{"escapes", "http://a/%2Fb%20?c=%26+", Redirect{Scheme: "https"}, "https://a/%2Fb%20?c=%26+"},
		{"bytes that a URI excludes", "http://a/v1/|{}^`\"<\xe9é\\?|{}\\é%zz", Redirect{OldPrefix: "/v1"}, "http://a/|{}^`\"<\xe9é\\?|{}\\é%zz"},
		{"bytes that the prefix has encoded", "http://a/c|d/é/x", Redirect{OldPrefix: "/c%7Cd/%C3%A9", NewPrefix: "/e"}, "http://a/e/x"},
		{"another prefix than the encoded one", "http://a/c|d/x", Redirect{OldPrefix: "/c%7Cd/%C3%A9", NewPrefix: "/e"}, ""},
		{"no path", "http://a", Redirect{Scheme: "https"}, "https://a/"},
	} {
		t.Run(tt.what, func(t *testing.T) { assert.Equal(t, tt.to, redirectTo(t, tt.r, tt.from)) })
	}
}

func TestLocationOptionsAndConnect(t *testing.T) {
	for _, path := range []string{"", "*"} {
		from, _ := locationOf("http", "a", path, "")
		assert.Equal(t, "https://a/", Redirect{Scheme: "https"}.apply(from).String())
	}
}

func TestLocationWithoutHost(t *testing.T) {
	for _, authority := range []string{
		"", ":80", "a b", "user@a", "a/b", "a?b", "a#b", `a\b`, "a:b", "a:65536", "a:-1", "[::1", "::1:80:", "[fe80::1%eth0]:80",
		"evil.com\r\nSet-Cookie: a", "1.2.3", "a..b",
	} {
		_, known := locationOf("http", authority, "/", "")
		assert.False(t, known, "%q", authority)
	}
}

// For any request, Location is one URI, and its host is that of the request or of the
// redirect.
func FuzzLocation(f *testing.F) {
	f.Add("web:80", "//evil.com/a", "b#c", "/v1", "/")
	f.Add("[::1]", `/v1/\evil.com`, "a\r\nb: c", "/v1", "//")
	f.Add("a@b", "*", "", "/", "")
	f.Add("web", "/100%", "%zz", "/", "/%4")
	f.Fuzz(func(t *testing.T, authority, path, query, oldPrefix, newPrefix string) {
		for _, r := range []Redirect{{Scheme: "https"}, {Host: "b"}, {OldPrefix: oldPrefix, NewPrefix: newPrefix}, {Path: newPrefix}} {
			from, known := locationOf("http", authority, path, query)
			if _, err := url.PathUnescape(path); err != nil || r.Validate() != nil || !known && r.Host == "" {
				continue
			}
			to := r.apply(from)
			u, err := url.Parse(to.String())
			require.NoError(t, err)
			host := r.Host
			if host == "" {
				host, _, _ = splitAuthority(authority)
			}
			if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() {
				host = "[" + host + "]"
			}
			require.Equal(t, host, strings.TrimSuffix(u.Host, ":"+u.Port()))
			require.Nil(t, u.User)
			require.Empty(t, u.Fragment)
			require.True(t, strings.HasPrefix(u.EscapedPath(), "/"), to)
			require.Equal(t, to.query != "", u.RawQuery != "")
		}
	})
}

func TestRedirectValidate(t *testing.T) {
	for why, r := range map[string]Redirect{
		"status 200 is not":              {Status: 200, Host: "a"},
		"status 300 is not":              {Status: 300, Host: "a"},
		"status 304 is not":              {Status: 304, Host: "a"},
		`scheme "ftp"`:                   {Scheme: "ftp"},
		`host "a:80"`:                    {Host: "a:80"},
		`host "[::1]"`:                   {Host: "[::1]"},
		`host "a/b"`:                     {Host: "a/b"},
		`host "fe80::1%eth0"`:            {Host: "fe80::1%eth0"},
		"a path and a prefix":            {Path: "/a", OldPrefix: "/b"},
		"without an old one":             {NewPrefix: "/b"},
		"no scheme, host, port or path":  {Status: 301},
		`path "a" does not begin with /`: {Path: "a"},
		`path "b" does not begin with /`: {OldPrefix: "/a", NewPrefix: "b"},
		`path "/a?b"`:                    {OldPrefix: "/a?b", NewPrefix: "/"},
		`path "/a b"`:                    {Path: "/a b"},
		`path "/a#b"`:                    {Path: "/a#b"},
		`path "/ü"`:                      {Path: "/ü"},
		`path "/a\r\nb"`:                 {Path: "/a\r\nb"},
		`path "/100%"`:                   {Path: "/100%"},
		`path "/%4g"`:                    {OldPrefix: "/a", NewPrefix: "/%4g"},
		`query "b=%"`:                    {Path: "/%2F?b=%"},
		`query "b c"`:                    {Path: "/a?b c"},
		`path ""`:                        {Path: "?b"},
	} {
		require.ErrorContains(t, r.Validate(), why)
	}
	for _, status := range []int{0, 301, 302, 303, 307, 308} {
		require.NoError(t, Redirect{Status: status, Path: "/a?b=c"}.Validate())
	}
}
