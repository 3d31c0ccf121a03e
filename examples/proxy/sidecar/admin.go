package sidecar

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/view"
)

// operator is what serves an operator.
type operator struct {
	http.Handler
	page *view.Handler
}

// Shutdown ends the streams of open pages.
func (o operator) Shutdown() { o.page.Shutdown() }

// admin is what an operator looks at.
func admin(m *meters, page *view.Handler, describe func() layer.Node) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/view/", http.StatusFound))
	mux.Handle("GET /view/", http.StripPrefix("/view", page))
	mux.Handle("GET /live", text("live\n"))
	mux.Handle("GET /ready", text("ready\n"))
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /stack", func(w http.ResponseWriter, r *http.Request) {
		tree := describe()
		if strings.Contains(r.Header.Get("Accept"), "json") || r.FormValue("o") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(tree)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, tree.String())
	})
	return operator{mux, page}
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, s)
	})
}
