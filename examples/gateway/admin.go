package main

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/view"
)

// adminPage is the handler of the admin address. It serves health checks, metrics, and the
// web page of package view, which shows live requests.
type adminPage struct {
	*http.ServeMux

	page     *view.Handler
	draining atomic.Bool
}

// newAdmin returns the handler of the admin address of g. The argument hosts contains the
// host names by which a browser may open the web page. The argument loaded reports whether
// the gateway has loaded its configuration.
func newAdmin(g *gateway, hosts []string, loaded func() bool) *adminPage {
	a := &adminPage{ServeMux: http.NewServeMux(), page: view.New(view.Config{
		Registry: g.tap, Title: "gateway", Hosts: hosts, Describe: func() layer.Node { return g.describe() },
	})}
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.Handle("GET /", a.page)
	a.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
	a.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	a.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case a.draining.Load():
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case !loaded():
			http.Error(w, "loading", http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, "ok\n")
		}
	})
	return a
}

// Shutdown ends the streams of the pages that are open in browsers.
func (a *adminPage) Shutdown() { a.page.Shutdown() }
