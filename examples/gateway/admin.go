package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// adminPage handles requests to the admin address: health checks, metrics, and package view's
// page with live requests.
type adminPage struct {
	*http.ServeMux

	page     *view.Handler
	draining atomic.Bool // the gateway is ending, so that the readiness check fails
}

// newAdmin returns the handler for the gateway's admin address. hosts are the names under which a
// browser may open the page. loaded reports whether the gateway has loaded its configuration.
func newAdmin(g *gateway, hosts []string, loaded func() bool) *adminPage {
	a := &adminPage{ServeMux: http.NewServeMux(), page: view.New(view.Config{
		Registry: g.tap, Title: "gateway", Hosts: hosts, Totals: tap.Inbound, Describe: func() layer.Node { return g.describe() },
	})}
	g.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// Paths that are not registered below belong to the page, which checks the host itself.
	a.Handle("GET /", a.page)
	a.Handle("GET /metrics", ownHost(hosts, promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{})))
	a.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	a.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		// The order matters: a draining gateway must not get more traffic, even if it is healthy.
		switch {
		case a.draining.Load():
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case !loaded():
			http.Error(w, "loading", http.StatusServiceUnavailable)
		default:
			// current is not nil once the configuration is loaded.
			writeHealth(w, g.current.Load().services)
		}
	})
	return a
}

// addProfiles serves the process's profiles at /debug/pprof/.
func (a *adminPage) addProfiles(hosts []string) {
	for path, handler := range map[string]http.HandlerFunc{
		"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		a.Handle("GET /debug/pprof/"+path, ownHost(hosts, handler))
	}
}

// ownHost guards next against DNS rebinding: a page in a browser on this machine could make its
// own name resolve to a loopback address and then read responses. At a loopback address, ownHost
// therefore accepts only localhost, IP addresses and hosts. At other addresses, monitoring may
// use any name.
func ownHost(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// addr stays zero without a local address, and the host is then not checked.
		var addr netip.AddrPort
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			addr, _ = netip.ParseAddrPort(local.String())
		}
		if addr.Addr().Unmap().IsLoopback() && !authority.IsOwn(r.Host, hosts) {
			text := fmt.Sprintf("the host %q is not allowed: use localhost, an address, or one of admin.hosts", r.Host)
			http.Error(w, text, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Shutdown ends the streams to pages that are open in browsers.
func (a *adminPage) Shutdown() { a.page.Shutdown() }
