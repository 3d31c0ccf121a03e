package view

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap"
)

// ask makes a request as a client of this machine does.
func ask(h http.Handler, method, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, http.NoBody)
	r.RemoteAddr, r.Host = "127.0.0.1:4242", "localhost:9990"
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestPage(t *testing.T) {
	h := New(Config{})
	w := ask(h, http.MethodGet, "/")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	require.Equal(t, "DENY", w.Header().Get("X-Frame-Options"))
	policy := w.Header().Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	require.NotContains(t, policy, "unsafe")

	again := ask(h, http.MethodGet, "/", func(r *http.Request) { r.Header.Set("If-None-Match", w.Header().Get("ETag")) })
	require.Equal(t, http.StatusNotModified, again.Code)
	require.Empty(t, again.Body.String())
}

func TestParts(t *testing.T) {
	h := New(Config{})
	kinds := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
	require.NoError(t, fs.WalkDir(files, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		w := ask(h, http.MethodGet, strings.TrimPrefix(name, "page"))
		assert.Equal(t, http.StatusOK, w.Code, name)
		assert.True(t, strings.HasPrefix(w.Header().Get("Content-Type"), kinds[path.Ext(name)]), name)
		return nil
	}))
	for _, none := range []string{"/none.js", "/../view.go", "/%2e%2e/view.go", "/page", "/page/index.html", "/.", "//", "/live/", "/js\x00"} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.URL.Path, r.RemoteAddr, r.Host = none, "127.0.0.1:1", "localhost"
		if unescaped, err := url.PathUnescape(none); err == nil {
			r.URL.Path = unescaped
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusNotFound, w.Code, "%q", none)
	}
}

// Foreign text never becomes markup or script, and the page loads nothing from other
// servers.
func TestPageUsesTextOnly(t *testing.T) {
	forbidden := regexp.MustCompile(
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|new Function|setTimeout\(['"]|srcdoc`)
	handlers := regexp.MustCompile(`\son[a-z]+=|style=|javascript:|<script>|<style>`)
	elsewhere := regexp.MustCompile(`https?://|//[a-z]+\.|@import|url\(`)
	require.NoError(t, fs.WalkDir(files, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(name)
		s := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
		assert.Empty(t, forbidden.FindString(s), name)
		assert.Empty(t, elsewhere.FindString(s), name)
		if path.Ext(name) == ".html" {
			assert.Empty(t, handlers.FindString(s), name)
		}
		return err
	}))
}

func TestHandlerUnderPrefix(t *testing.T) {
	for _, tt := range []struct{ prefix, target, location string }{
		{"/a/view", "/a/view", "./view/"},
		{"/a/view", "/a/view?x=1", "./view/"},
		{"/a/view", "/a/view/", ""},
		{"/a/view/", "/a/view/", ""},
		{"/a/view", "/a/view/main.js", ""},
		{"/a/view/", "/a/view/main.js", ""},
		{"/javascript:x", "/javascript:x", "./javascript:x/"},
	} {
		w := ask(http.StripPrefix(tt.prefix, New(Config{})), http.MethodGet, tt.target)
		if tt.location == "" {
			assert.Equal(t, http.StatusOK, w.Code, tt.target)
			continue
		}
		assert.Equal(t, http.StatusMovedPermanently, w.Code, tt.target)
		assert.Equal(t, tt.location, w.Header().Get("Location"))
	}
}

func TestHandlerMethods(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"} {
		w := ask(New(Config{}), method, "/")
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
	reg := new(tap.Registry)
	for _, target := range []string{"/", "/main.js", "/live", "/tap"} {
		w := ask(New(Config{Registry: reg}), http.MethodHead, target)
		assert.Equal(t, http.StatusOK, w.Code, target)
		assert.Empty(t, w.Body.String(), target)
		assert.NotEmpty(t, w.Header().Get("Content-Type"), target)
		assert.Zero(t, watching(reg))
	}
}

func TestAccess(t *testing.T) {
	from := func(addr string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = addr } }
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	everybody := Config{Authorize: func(*http.Request) error { return nil }, Hosts: []string{"admin.example"}}
	for _, tt := range []struct {
		name    string
		c       Config
		change  func(*http.Request)
		problem string
	}{
		{"loopback", Config{}, from("127.0.0.1:1"), ""},
		{"another of loopback", Config{}, from("127.8.8.8:1"), ""},
		{"loopback 6", Config{}, from("[::1]:1"), ""},
		{"4 in 6", Config{}, from("[::ffff:127.0.0.1]:1"), ""},
		{"a unix socket", Config{}, from("@"), ""},
		{"elsewhere", Config{}, from("10.0.0.1:1"), "10.0.0.1:1 is not on this machine"},
		{"elsewhere in 6", Config{}, from("[::ffff:10.0.0.1]:1"), "is not on this machine"},
		{"no address", Config{}, from("pipe"), "pipe is not on this machine"},
		{"forwarded", Config{}, header("X-Forwarded-For", "1.2.3.4"), "forwarded"},
		{"forwarded, with an empty one of the client before that of the proxy", Config{}, func(r *http.Request) {
			r.Header["X-Forwarded-For"] = []string{"", "1.2.3.4"}
		}, "forwarded"},
		{"forwarded by nginx", Config{}, header("X-Real-IP", "1.2.3.4"), "forwarded"},
		{"forwarded by the standard", Config{}, header("Forwarded", "for=1.2.3.4"), "forwarded"},

		{"an address", Config{}, host("127.0.0.1:80"), ""},
		{"an address of ours", Config{}, host("10.1.2.3"), ""},
		{"an address 6", Config{}, host("[::1]:80"), ""},
		{"an address 6 without a port", Config{}, host("[::1]"), ""},
		{"a name of loopback", Config{}, host("a.localhost:80"), ""},
		{"the name, differently", Config{}, host("LOCALHOST."), ""},
		{"a name made to point here", Config{}, host("evil.example:9990"), `the host "evil.example:9990" is not allowed`},
		{"one that looks like ours", Config{}, host("localhost.evil.example"), "is not allowed"},
		{"one that ends like ours", Config{}, host("notlocalhost"), "is not allowed"},
		{"none", Config{}, host(""), "is not allowed"},

		{"our own page", Config{}, header("Sec-Fetch-Site", "same-origin"), ""},
		{"typed by hand", Config{}, header("Sec-Fetch-Site", "none"), ""},
		{"a script of another", Config{}, header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), "another origin"},
		{"another port of ours", Config{}, header("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"), "another origin"},
		{"a link", Config{}, header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), ""},
		{"an old browser, another origin", Config{}, header("Origin", "http://evil.example"), "another origin"},
		{"an old browser, no origin to speak of", Config{}, header("Origin", "null"), "another origin"},
		{"an old browser, another port", Config{}, header("Origin", "http://localhost:80"), "another origin"},
		{"an old browser, our origin", Config{}, header("Origin", "http://localhost:9990"), ""},
		{"a frame", Config{}, header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), "another origin"},

		{"allowed", everybody, from("10.0.0.1:1"), ""},
		{"allowed by name", everybody, host("Admin.Example:80"), ""},
		{"allowed, but not by that name", everybody, host("evil.example"), "is not allowed"},
		{"not allowed", Config{Authorize: func(*http.Request) error { return errors.New("not you") }}, from("127.0.0.1:1"), "view: not you"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := New(tt.c)
			for _, target := range []string{"/", "/main.js", "/live", "/tap"} {
				if tt.problem == "" && target != "/" {
					continue // streams would not end
				}
				w := ask(h, http.MethodGet, target, tt.change)
				if tt.problem == "" {
					require.Equal(t, http.StatusOK, w.Code, w.Body.String())
					continue
				}
				require.Equal(t, http.StatusForbidden, w.Code, target)
				require.Contains(t, w.Body.String(), tt.problem)
				require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"), "it names what the client sent")
			}
		})
	}
}

// A program may have no registry.
func TestHandlerWithoutRegistry(t *testing.T) {
	for _, none := range []Source{nil, (*tap.Registry)(nil)} {
		_, at := serve(t, Config{Registry: none})
		listen(t, at+"/live").await("frame")
	}
}

func TestHandlerMaxStreams(t *testing.T) {
	h, at := serve(t, Config{})
	for range maxStreams {
		listen(t, at+"/live").await("hello")
	}
	w := ask(h, http.MethodGet, "/live")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "too many pages")
	require.Equal(t, http.StatusOK, ask(h, http.MethodGet, "/").Code, "the page says why itself")
}

func TestShutdownEndsStreams(t *testing.T) {
	h, at := serve(t, Config{})
	live, requests := listen(t, at+"/live"), listen(t, at+"/tap")
	live.await("frame")
	h.Shutdown()
	h.Shutdown()
	for _, l := range []*listener{live, requests} {
		_, err := io.ReadAll(l.body)
		require.NoError(t, err, "the server ended it")
	}
	w := ask(h, http.MethodGet, "/live")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "shutting down")
}
