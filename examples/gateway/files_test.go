package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A route responds with files, without folders and hidden files. An application has its own paths.
func TestStaticFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"public/index.html": "<p>start", "public/a/b.css": "p {}", "public/docs/index.html": "<p>docs", "public/.env": "SECRET",
		"public/.git/config": "SECRET", "public/.well-known/security.txt": "mail", "outside": "SECRET",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := startFile(t, writeIn(t, dir, head+`
routes:
- name: app
  matches: [{path: {prefix: /app}}]
  urlRewrite: {path: {replacePrefixMatch: /}}
  staticFiles: {root: public, fallback: /index.html}
- {name: site, staticFiles: {root: public}, responseHeaderModifier: {set: [{name: Cache-Control, value: max-age=5}]}}
`))
	for path, want := range map[string]string{
		"/": "<p>start", "/a/b.css": "p {}", "/docs/": "<p>docs", "/.well-known/security.txt": "mail",
		"/app": "<p>start", "/app/a/b.css": "p {}", "/app/users/7": "<p>start", "/app/.env": "<p>start", "/app/a": "<p>start",
	} {
		a := p.get(t, "GET", path)
		assert.Equal(t, []any{200, want}, []any{a.StatusCode, a.body}, path)
	}
	for _, path := range []string{"/a", "/a/", "/none", "/.env", "/.git/config", "/%2eenv", "/a/../../outside", "/a/..%2f..%2foutside"} {
		a := p.get(t, "GET", path)
		assert.Contains(t, []int{400, 404}, a.StatusCode, path)
		assert.NotContains(t, a.body, "SECRET", path)
	}
	assert.Equal(t, "docs/", p.get(t, "GET", "/docs").Header.Get("Location"))
	a := p.get(t, "GET", "/a/b.css", "Range: bytes=0-0")
	assert.Equal(t, []any{206, "p", "text/css; charset=utf-8", "max-age=5"}, []any{a.StatusCode, a.body, a.Header.Get("Content-Type"), a.Header.Get("Cache-Control")})
	assert.Equal(t, http.StatusNotModified, p.get(t, "GET", "/a/b.css", "If-Modified-Since: "+a.Header.Get("Last-Modified")).StatusCode)
	a = p.get(t, "POST", "/")
	assert.Equal(t, []any{405, "GET, HEAD"}, []any{a.StatusCode, a.Header.Get("Allow")})
	assert.Contains(t, output(t, "explain", p.file, "GET", "http://a/app"), "action   files in "+dir+"/public\n")
}
