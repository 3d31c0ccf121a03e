package main

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
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

// Header modifiers apply once to a request: all attempts and mirrors get the same fields. The access log and the
// variables for the response have those of the client.
func TestHeaderModifiersApplyOnce(t *testing.T) {
	seen := make(chan string, 3)
	record := func(name string, r *http.Request) {
		seen <- strings.Join(append([]string{name, r.Host, r.UserAgent(), r.Header.Get("X-Old")}, r.Header["X-List"]...), " ")
	}
	var attempts atomic.Int64
	failing := serverAt(t, func(w http.ResponseWriter, r *http.Request) {
		record("attempt", r)
		if attempts.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mirror := serverAt(t, func(_ http.ResponseWriter, r *http.Request) { record("mirror", r) })
	p := start(t, `
listeners: [{name: http, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0", tap: "off"}
services:
`+service("failing", failing)+service("mirror", mirror)+`
retryBudget: {minRetryRate: 100}
routes:
- name: all
  backendRefs: [{name: failing}]
  requestMirrors: [{backendRef: {name: mirror}}]
  retry: {attempts: 1}
  requestHeaderModifier:
    add: [{name: X-List, value: b}]
    set: [{name: Host, value: service.example}, {name: User-Agent, value: gateway}]
    remove: [X-Old]
  responseHeaderModifier: {set: [{name: X-Host, value: "{host}"}]}
`)
	a := p.get(t, "GET", "/", "Host: client.example", "User-Agent: client", "X-List: a", "X-Old: 1")
	assert.Equal(t, []any{http.StatusOK, "client.example"}, []any{a.StatusCode, a.Header.Get("X-Host")})
	assert.ElementsMatch(t, []string{
		"attempt service.example gateway  a b", "attempt service.example gateway  a b", "mirror service.example gateway  a b",
	}, []string{<-seen, <-seen, <-seen})
	var line string
	until(t, func() bool {
		line = regexp.MustCompile(`(?m)^\{.*\}$`).FindString(p.log.String())
		return line != ""
	})
	var entry struct {
		Host  string
		Agent string `json:"user_agent"`
	}
	require.NoError(t, json.Unmarshal([]byte(line), &entry))
	assert.Equal(t, []string{"client.example", "client"}, []string{entry.Host, entry.Agent})
}

// A redirect has the host for which the client has asked, and not that for services.
func TestRedirectIgnoresRequestModifiers(t *testing.T) {
	a := start(t, head+`routes:
- {name: all, requestRedirect: {scheme: https}, requestHeaderModifier: {set: [{name: Host, value: backend.internal}]}}
`).get(t, "GET", "/a")
	assert.Equal(t, 302, a.StatusCode)
	assert.NotContains(t, a.Header.Get("Location"), "backend.internal")
}
