package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gotower/gotower/examples/internal/rowtest"
)

// The gateway forwards all rows unchanged with every observer on: access log, metrics of statuses,
// traces, compression, CORS, a rate limit, a header edit and retries.
func TestRows(t *testing.T) {
	rowtest.Run(t, func(t *testing.T, one, two string) rowtest.Proxy {
		collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(collector.Close)
		const filters = `cors: {allowOrigins: ["*"]}, rateLimit: {per: Client, requestsPerSecond: 1000}, ` +
			`requestHeaderModifier: {set: [{name: X-Edited, value: a}]}, retry: {attempts: 2}`
		p := start(t, `
listeners: [{name: http, address: "127.0.0.1:0", compression: {}}]
admin: {address: "127.0.0.1:0"}
accessLog: {format: json}
tracing: {endpoint: "`+collector.URL+`", sampleRatio: 1}
services:
- {name: one, static: {addresses: ["`+one+`"]}}
- {name: two, static: {addresses: ["`+two+`"]}, protocol: HTTP2}
routes:
- {name: two, matches: [{path: {prefix: /two}}], backendRefs: [{name: two}], `+filters+`}
- {name: one, backendRefs: [{name: one}], `+filters+`}
`)
		return rowtest.Proxy{HTTP1: p.addresses["http"], HTTP2: p.addresses["http"], Log: p.log.String}
	})
}
