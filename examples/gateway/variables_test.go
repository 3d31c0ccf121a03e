package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Header values have the properties of the request. Other braces are text.
func TestHeaderVariables(t *testing.T) {
	seen := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Old", "1")
		_, _ = io.WriteString(w, strings.Join([]string{
			r.Header.Get("X-Real-IP"), r.Header.Get("X-All"), r.Header.Get("X-Json"), r.Header.Get("X-Old"), r.Header.Get("X-Request-ID"), r.URL.Path,
		}, "|"))
	})
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", trustedProxies: [127.0.0.1]}]`, 1)+"services:\n"+service("a", seen)+`
routes:
- name: shop
  matches: [{path: {prefix: /a}}]
  backendRefs: [{name: a}]
  urlRewrite: {path: {replacePrefixMatch: /b}}
  requestHeaderModifier:
    set:
    - {name: X-Real-IP, value: "{client_ip}"}
    - {name: X-All, value: "{method} {scheme}://{host}{path} {route}/{listener};"}
    - {name: X-Request-ID, value: "{request_id}"}
    - {name: X-JSON, value: '{"a":{}}'}
    remove: [X-Old]
  responseHeaderModifier: {add: [{name: X-Request-ID, value: "id-{request_id}"}], remove: [X-Old]}
- {name: plain, backendRefs: [{name: a}]}
`)
	a := p.get(t, "GET", "/a/%2541?q", "Host: Shop.example:81", "X-Forwarded-For: 192.0.2.7", "X-Real-IP: 10.0.0.1", "X-Old: 2")
	parts := strings.Split(a.body, "|")
	require.Len(t, parts, 6)
	id := parts[4]
	assert.Equal(t, []string{"192.0.2.7", "GET http://Shop.example/a/%2541 shop/http;", `{"a":{}}`, "", id, "/b/%41"}, parts)
	assert.Regexp(t, `^[0-9a-f]{32}$`, id)
	assert.Equal(t, "id-"+id, a.Header.Get("X-Request-ID"))
	assert.Empty(t, a.Header.Get("X-Old"))
	assert.NotContains(t, p.get(t, "GET", "/a").body, id)
	assert.Equal(t, "|||||/", p.get(t, "GET", "/").body)
}
