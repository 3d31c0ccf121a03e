package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPathPolicyNormalize(t *testing.T) {
	all := PathPolicy{KeepSlashes: true, Allow: ambiguous[:]}
	for path, want := range map[string]string{
		"": "", "*": "*", "/": "/", "/.": "/", "/..": "/", "/../..": "/", "/../a": "/a", "/a/.": "/a/", "/a/./b": "/a/b", "/a/..": "/",
		"/a/b/..": "/a/", "/a/../../b": "/b", "/.a/..b/c.": "/.a/..b/c.", "/...": "/...", "/a/%2e%2E/b": "/b", "/%2561": "/%2561",
		"/%61%5A%30%2d%2E%5f%7E": "/aZ0-._~", "/%25%20%c3%a4%40%5B%60%7B": "/%25%20%c3%a4%40%5B%60%7B",
		"/a|b{c}^`\"<ä>": "/a|b{c}^`\"<ä>", "/a;b=c/d;e": "/a;b=c/d;e", "/1,2;3,4": "/1,2;3,4",
	} {
		for _, p := range []PathPolicy{{}, all} {
			normal, err := p.Normalize(path)
			require.NoError(t, err, path)
			require.Equal(t, want, normal, path)
			again, err := p.Normalize(normal)
			require.NoError(t, err)
			require.Equal(t, normal, again)
		}
	}
	for path, want := range map[string][2]string{ // merged and kept slashes
		"//": {"/", "//"}, "//a//b": {"/a/b", "//a//b"}, "/a//../b": {"/b", "/a/b"}, "/a/.//b": {"/a/b", "/a//b"}, "///%2e//": {"/", "////"},
		"/x/%2e%2e//admin": {"/admin", "//admin"},
	} {
		for i, p := range []PathPolicy{{}, {KeepSlashes: true}} {
			normal, err := p.Normalize(path)
			require.NoError(t, err, path)
			require.Equal(t, want[i], normal, path)
		}
	}
	for _, path := range []string{"/a%2Fb", "/%2fadmin", "/a%5cb", "/a%3Bb", "/a%00", `/a\b`} {
		_, err := PathPolicy{}.Normalize(path)
		require.ErrorContains(t, err, "which servers read in different ways", path)
		normal, err := all.Normalize(path)
		require.NoError(t, err, path)
		require.Equal(t, path, normal)
	}
	for _, path := range []string{
		"/a#b", "/%", "/%2", "/%zz", "/x/..;/admin", "/x/..;a=b/admin", "/.;/a", "/x/..%2fadmin", "/x/..%5Cadmin", "/x%2f..", "/x/%2e%2e%3b/a", `/x/..\admin`,
	} {
		for _, p := range []PathPolicy{{}, all} {
			_, err := p.Normalize(path)
			require.Error(t, err, path)
		}
	}
	require.EqualError(t, PathPolicy{Allow: []string{"%2F", "%2f"}}.Validate(), `PathPolicy.Allow has "%2f", must be one of %2F %5C %3B %00 \`)
	require.Panics(t, func() { NormalizePath(PathPolicy{Allow: []string{"/"}}) })
}

// What the layers below decide by is what the server gets.
func TestNormalizePath(t *testing.T) {
	var decided string
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }))
	e := endpoint(t, up)
	f := servingBy(t, Handler(NewStack().With("normalize_path", NormalizePath(PathPolicy{})).Service(
		serviceFunc(func(ctx context.Context, r *http.Request) (*http.Response, error) {
			decided = HTTP{}.Path(r)
			assert.True(t, strings.HasPrefix(r.RequestURI, decided) || strings.HasPrefix(r.RequestURI, "http:"), r.RequestURI)
			return e.Call(ctx, r)
		}))))
	for target, want := range map[string]string{
		"/a/../b?x=//..%2f": "/b?x=//..%2f", "//admin": "/admin", "/%61?": "/a?", "http://a//b": "http://a/b", "/x/%2e%2e/y": "/y", "/plain": "/plain", "/a;b": "/a;b",
		"/%2fadmin": "", "/admin%00": "", "/x/..%2fadmin": "", "/x/..;/admin": "",
	} {
		conn, err := net.Dial("tcp", f.addr)
		require.NoError(t, err)
		say(conn, "GET "+target+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, target)
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		conn.Close()
		if want == "" {
			assert.Equal(t, http.StatusBadRequest, rsp.StatusCode, target)
			assert.Contains(t, string(body), "read in different ways", target)
			continue
		}
		assert.Equal(t, want, string(body), target)
		path, _, _ := strings.Cut(strings.TrimPrefix(want, "http://a"), "?")
		assert.Equal(t, path, decided, target)
	}
}

// A path in normal form costs nothing.
func TestNormalizePathAllocs(t *testing.T) {
	var got *http.Request
	svc := NormalizePath(PathPolicy{})(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		got = r
		return nil, nil
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/books/1", http.NoBody)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(t.Context(), r) }))
	assert.Same(t, r, got)
}
