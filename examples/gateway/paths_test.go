package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A client cannot avoid a route and its externalAuth by another form of the path: the services get
// what the routes have compared.
func TestListenerPaths(t *testing.T) {
	config := func(path string) string {
		return strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0"`+path+`}]`, 1) + "services:\n" +
			service("deny", serverAt(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })) +
			service("a", serverAt(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })) + `
routes:
- {name: public, matches: [{path: {prefix: /admin/public}}], backendRefs: [{name: a}]}
- {name: admin, matches: [{path: {prefix: /admin}}], backendRefs: [{name: a}], externalAuth: {backendRef: {name: deny}}}
- {name: all, backendRefs: [{name: a}]}
`
	}
	both := map[string]string{ // 401 and 400, or the path that the service gets
		"/admin": "401", "/%61dmin": "401", "/admin/": "401", "/x/../admin": "401", "/x/%2e%2e/admin": "401", "/admin/public/../x": "401",
		"/admin;x": "400", "/admin;x/y": "400", "/;x/admin": "400", "/x;y/../admin": "401", "/x/..;/admin": "400", "/admin/public;/x": "400",
		"/admin/public;x/../secret": "401", "/a;b=c/d": "/a;b=c/d", "/1,2;3,4": "/1,2;3,4",
		"/a%20b": "/a%20b", "/administrator": "/administrator",
	}
	p := start(t, config(""))
	for path, want := range both {
		assert.Equal(t, want, seen(t, p, path), path)
	}
	for path, want := range map[string]string{
		"//admin": "401", "/x//..//admin": "401", "/%2fadmin": "400", "/x/..%2fadmin": "400", "/admin%2f": "400", "/admin%5cx": "400",
		`/admin\x`: "400", "/admin%3Bx": "400", "/admin%00": "400", "/a//b": "/a/b", "/api/v4/projects/group%2Fproject": "400",
	} {
		assert.Equal(t, want, seen(t, p, path), path)
	}
	p = start(t, config(`, path: {mergeSlashes: false, allow: ["%2F", "%5C", "%3B", "%00", "\\", ";"]}`))
	for path, want := range map[string]string{
		"/admin": "401", "/x/%2e%2e/admin": "401", "/x/..%2fadmin": "400", "/a//b": "/a//b", "/api/v4/projects/group%2Fproject": "/api/v4/projects/group%2Fproject",
		"/a%3Bb%00%5c": "/a%3Bb%00%5c", "/admin;x": "/admin;x",
	} {
		assert.Equal(t, want, seen(t, p, path), path)
	}
	p = start(t, config(`, path: {normalize: false}`))
	for _, path := range []string{"//admin", "/x/../admin", "/%61dmin", "/admin%2f", "/admin;x"} {
		assert.Equal(t, path, seen(t, p, path), path)
	}
}

// seen sends a request for path and returns the path that the service got, or the status of another
// response than 200.
func seen(t *testing.T, p *process, path string) string {
	t.Helper()
	status, body := rawBody(t, p.addresses["http"], "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if status != "200" {
		return status
	}
	return body
}
