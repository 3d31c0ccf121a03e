package main

import (
	"net/http"
	"testing"

	"github.com/gotower/gotower/internal/restarttest"
)

// A server that ends connections costs no POST and no call of gRPC, on routes with and without retries.
func TestRestarts(t *testing.T) {
	t.Parallel()
	routes := map[string]string{
		"plain": "routes: [{name: all, backendRefs: [{name: a}]}]\n",
		"retry": "routes: [{name: all, backendRefs: [{name: a}], retry: {attempts: 2, nonIdempotent: true}}]\n",
	}
	for name, route := range routes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateway := func(t *testing.T, service string) *process {
				t.Helper()
				return start(t, head+"services:\n"+service+route)
			}
			t.Run("HTTP/1.1", func(t *testing.T) {
				t.Parallel()
				s := restarttest.NewHTTP(t)
				p := gateway(t, service("a", s.Addr))
				s.LoadBetweenRestarts(t, restarttest.Post(p.client, "http://"+p.addresses["http"]+"/"))
			})
			t.Run("HTTP/2", func(t *testing.T) {
				t.Parallel()
				s := restarttest.NewHTTP(t)
				p := gateway(t, "- {name: a, protocol: HTTP2, static: {addresses: ["+s.Addr+"]}}\n")
				for _, h2 := range []bool{false, true} {
					tr := &http.Transport{Protocols: new(http.Protocols)}
					tr.Protocols.SetHTTP1(!h2)
					tr.Protocols.SetUnencryptedHTTP2(h2)
					s.LoadDuringRestarts(t, restarttest.Post(&http.Client{Transport: tr}, "http://"+p.addresses["http"]+"/"))
					tr.CloseIdleConnections()
				}
			})
			t.Run("gRPC", func(t *testing.T) {
				t.Parallel()
				p := gateway(t, service("a", restarttest.GRPC(t)))
				restarttest.LoadGRPC(t, p.addresses["http"], "books.example")
			})
		})
	}
}
