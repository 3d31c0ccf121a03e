package main

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/grafanatest"
)

// After traffic, the page /metrics has a series above 0 for each query of the dashboard.
func TestMetricsDashboard(t *testing.T) {
	var requests atomic.Int64
	flaky := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow":
			<-r.Context().Done()
		case r.URL.Path == "/fails", requests.Add(1)%2 == 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	one, two := serverAt(t, flaky), serverAt(t, flaky)
	entered, end := make(chan struct{}, 2), make(chan struct{})
	waits := serverAt(t, func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-end
	})
	p := start(t, head+`
retryBudget: {percent: 0, minRetryRate: 1}
services:
`+service("flaky", one)+`
- {name: waits, static: {addresses: ["`+waits+`"]}, circuitBreakers: {maxRequests: 1}, queue: {maxWait: 1m}}
- {name: broken, static: {addresses: ["`+one+`", "`+two+`"]}, outlierDetection: {consecutiveFailures: 1}}
- {name: busy, static: {addresses: ["`+waits+`"]}, circuitBreakers: {maxRequests: 1}, queue: {maxWait: 10ms}}
- {name: closed, static: {addresses: ["127.0.0.1:1"]}}
routes:
- {name: slow, matches: [{path: {exact: /slow}}], backendRefs: [{name: flaky}], timeouts: {request: 20ms}}
- {name: waits, matches: [{path: {exact: /waits}}], backendRefs: [{name: waits}]}
- {name: broken, matches: [{path: {exact: /fails}}], backendRefs: [{name: broken}]}
- {name: busy, matches: [{path: {exact: /busy}}], backendRefs: [{name: busy}]}
- {name: closed, matches: [{path: {exact: /closed}}], backendRefs: [{name: closed}]}
- {name: limited, matches: [{path: {exact: /limited}}], backendRefs: [{name: flaky}], rateLimit: {requestsPerSecond: 0.001, burst: 1}}
- {name: all, backendRefs: [{name: flaky}]}
`)
	var waiting sync.WaitGroup
	release := sync.OnceFunc(func() { close(end); waiting.Wait() })
	t.Cleanup(release)
	for _, path := range []string{"/waits", "/waits", "/busy"} {
		waiting.Go(func() { _, _ = p.send(context.Background(), "GET", "http://"+p.addresses["http"]+path, "") })
	}
	for range 2 {
		<-entered
	}
	dashboard, err := os.ReadFile("../../instrument/promtower/grafana.json")
	require.NoError(t, err)
	late := time.Now().Add(time.Minute)
	for {
		for _, path := range []string{"/", "/", "/limited", "/slow", "/fails", "/busy", "/closed"} {
			p.get(t, "GET", path)
		}
		page, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
		require.NoError(t, err)
		var missing []string
		for _, query := range grafanatest.Missing(t, dashboard, grafanatest.Parse(t, page.body), true) {
			if !strings.Contains(query, "gotower_breakers_open{") { // the gateway has outlier detection instead
				missing = append(missing, query)
			}
		}
		if len(missing) == 0 {
			break
		}
		require.True(t, time.Now().Before(late), strings.Join(missing, "\n"))
	}
	release()
}

// A reload deletes the series of the routes and services that it removes. It keeps the others.
func TestMetricsOfRemovedRoutes(t *testing.T) {
	t.Parallel()
	to := backend(t, "a")
	text := func(name string) string {
		return head + "services:\n" + service("kept", to) + service(name, to) + `
routes:
- {name: kept, matches: [{path: {exact: /kept}}], backendRefs: [{name: kept}]}
- {name: ` + name + `, backendRefs: [{name: ` + name + `}], responseHeaderModifier: {set: [{name: X-Route, value: ` + name + `}]}}
`
	}
	p := start(t, text("first"))
	metrics := func() string {
		page, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
		require.NoError(t, err)
		return page.body
	}
	p.get(t, "GET", "/kept")
	p.get(t, "GET", "/")
	for _, series := range []string{`gotower_requests_total{route="first",target=""} 1`, `gotower_requests_total{route="first",target="first"} 1`,
		`gotower_endpoints{endpoint_state="ready",route="",target="first"} 1`} {
		require.Contains(t, metrics(), series)
	}
	p.replace(t, text("second"))
	until(t, func() bool { return p.get(t, "GET", "/").Header.Get("X-Route") == "second" })
	p.get(t, "GET", "/kept")
	page := metrics()
	for _, series := range []string{`gotower_requests_total{route="kept",target=""} 2`, `gotower_requests_total{route="second",target="second"} 1`,
		`gotower_endpoints{endpoint_state="ready",route="",target="second"} 1`, `gotower_endpoints{endpoint_state="ready",route="",target="kept"} 1`} {
		require.Contains(t, page, series)
	}
	require.NotContains(t, page, `"first"`)
}
