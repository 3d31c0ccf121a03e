package admin

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/examples/proxy/logs"
	"github.com/gotower/gotower/layer"
)

// Config is what a Handler shows. What is nil is not there, and answered with
// 404, unless it says otherwise.
type Config struct {
	Ready    func() bool       // whether the proxy can take part; asked until it is; nil: it can
	Metrics  http.Handler      // for /metrics
	Level    *logs.Level       // for /proxy-log-level
	Environ  func() []string   // for /env.json: os.Environ
	Shutdown func()            // for /shutdown; called for each request, must not wait; nil: not enabled
	Describe func() layer.Node // for /stack
	Page     Page              // for /view/, with that prefix taken away
	Hosts    []string          // names besides localhost, without a port, by which this server may be asked
}

// Page is the page of package tap/view.
type Page interface {
	http.Handler
	Shutdown()
}

// Handler serves an operator. It is safe for concurrent use.
type Handler struct {
	config Config
	mux    *http.ServeMux
	ready  atomic.Bool
}

// New returns a Handler. If it is given a page, let the server say when it
// shuts down: server.RegisterOnShutdown(handler.Shutdown).
func New(c Config) *Handler {
	h := &Handler{config: c, mux: http.NewServeMux()}
	h.get("/live", text("live\n"))
	h.get("/ready", http.HandlerFunc(h.serveReady))
	if c.Metrics != nil {
		h.get("/metrics", c.Metrics)
	}
	if c.Level != nil {
		h.mux.Handle("/proxy-log-level", h.guarded(local(http.HandlerFunc(h.serveLevel))))
	}
	if c.Environ != nil {
		h.mux.Handle("/env.json", h.guarded(only(http.HandlerFunc(h.serveEnviron), http.MethodGet)))
	}
	if c.Describe != nil {
		h.mux.Handle("/stack", h.guarded(only(local(http.HandlerFunc(h.serveStack)), http.MethodGet, http.MethodHead)))
	}
	if c.Page != nil {
		h.get("/{$}", http.RedirectHandler("/view/", http.StatusFound))
		h.mux.Handle("/view/", unhurried(http.StripPrefix("/view", c.Page))) // it guards itself
	}
	h.mux.Handle("/shutdown", h.guarded(only(local(http.HandlerFunc(h.serveShutdown)), http.MethodPost)))
	return h
}

// within is how long a client may take over an answer: three times what
// Prometheus gives a scrape. Whoever reads nothing is not to keep what there is for
// it, nor a proxy that is to end.
const within = 30 * time.Second

// ServeHTTP answers by the path. An answer that its client has not taken after 30 s
// is broken off, if w can; those of a page go on for as long as there is something
// to see.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within)) // not all can
	w.Header().Set("X-Content-Type-Options", "nosniff")
	h.mux.ServeHTTP(w, r)
}

// unhurried takes the limit away again.
func unhurried(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		next.ServeHTTP(w, r)
	})
}

// Shutdown ends the streams of open pages.
func (h *Handler) Shutdown() {
	if h.config.Page != nil {
		h.config.Page.Shutdown()
	}
}

func (h *Handler) get(path string, serve http.Handler) {
	h.mux.Handle(path, only(serve, http.MethodGet, http.MethodHead))
}

func (h *Handler) serveReady(w http.ResponseWriter, r *http.Request) {
	if !h.ready.Load() && h.config.Ready != nil && !h.config.Ready() {
		plain(w, http.StatusServiceUnavailable, "not ready\n")
		return
	}
	h.ready.Store(true) // a proxy that drains still serves what it has
	plain(w, http.StatusOK, "ready\n")
}

// mostFilter is how long a log filter may be, in bytes.
const mostFilter = 16 << 10

func (h *Handler) serveLevel(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		plain(w, http.StatusOK, h.config.Level.Filter().String()+"\n")
	case http.MethodPut:
		filter, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostFilter))
		if err == nil {
			err = h.config.Level.Set(strings.TrimSpace(string(filter)))
		}
		if err != nil {
			plain(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		notAllowed(w, http.MethodGet, http.MethodHead, http.MethodPut)
	}
}

func (h *Handler) serveShutdown(w http.ResponseWriter, _ *http.Request) {
	if h.config.Shutdown == nil {
		plain(w, http.StatusNotFound, "shutdown endpoint is not enabled\n")
		return
	}
	plain(w, http.StatusOK, "shutdown\n")
	h.config.Shutdown()
}

func (h *Handler) serveStack(w http.ResponseWriter, r *http.Request) {
	tree := h.config.Describe()
	if r.URL.Query().Get("o") == "json" || strings.Contains(r.Header.Get("Accept"), "json") {
		answerJSON(w, http.StatusOK, tree)
		return
	}
	plain(w, http.StatusOK, tree.String())
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, s) })
}

func plain(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s) //nolint:gosec // it is plain text, and nobody may take it for anything else
}
