package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Endpoints share the requests by weight, and may be Unix sockets.
func TestStaticEndpoints(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "app.sock")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Backend", "socket")
		_, _ = io.WriteString(w, r.Host)
	}))
	require.NoError(t, s.Listener.Close())
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	p := start(t, head+`
services:
- name: weighted
  loadBalancer: {policy: RoundRobin}
  static: {endpoints: [{address: "`+backend(t, "light")+`"}, {address: "unix:`+socket+`", weight: 3}]}
- name: socket
  static: {addresses: ["unix:`+socket+`"]}
  healthCheck: {path: /}
routes:
- {name: socket, matches: [{path: {exact: /socket}}], backendRefs: [{name: socket}]}
- {name: weighted, backendRefs: [{name: weighted}]}
`)
	a := p.get(t, "GET", "/socket", "Host: books.example")
	assert.Equal(t, []any{200, "books.example"}, []any{a.StatusCode, a.body})
	for _, name := range []string{"light", "socket"} { // both are connected
		until(t, func() bool { return p.get(t, "GET", "/").Header.Get("X-Backend") == name })
	}
	count := map[string]int{}
	for range 400 {
		count[p.get(t, "GET", "/").Header.Get("X-Backend")]++
	}
	assert.InDelta(t, 300, count["socket"], 80)
	assert.Equal(t, 400, count["socket"]+count["light"])
	s.Close()
	until(t, func() bool { return p.get(t, "GET", "/socket").StatusCode >= http.StatusInternalServerError })
	assert.Contains(t, output(t, "explain", p.file, "GET", "http://a/socket"), "socket: static [unix:"+socket+"]")
}
