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

// Config configures a [Handler]. Most fields enable one path. Requests for a path whose field is
// nil get the response 404.
type Config struct {
	Ready    func() bool       // called until it returns true once; nil: always ready
	Metrics  http.Handler      // for /metrics
	Level    *logs.Level       // for /proxy-log-level
	Environ  func() []string   // for /env.json; usually os.Environ
	Shutdown func()            // for /shutdown; called for each request, must not block
	Describe func() layer.Node // for /stack
	Page     Page              // for /view/; receives paths without /view
	Hosts    []string          // host names, without a port, that are allowed in addition to localhost
}

// Page serves the web page with live requests at the paths below /view/. Package tap/view's handler
// implements it. Shutdown ends the streams of open pages.
type Page interface {
	http.Handler
	Shutdown()
}

// Handler serves a proxy's status, metrics and controls. The package comment lists the paths.
// Handler is safe for concurrent use.
type Handler struct {
	config Config
	mux    *http.ServeMux
	ready  atomic.Bool
}

// New returns a Handler. If c.Page is set, you should pass [Handler.Shutdown] to the server's
// RegisterOnShutdown, because open pages otherwise delay the shutdown.
func New(c Config) *Handler {
	h := &Handler{config: c, mux: http.NewServeMux()}
	h.get("/live", text("live\n"))
	h.get("/ready", http.HandlerFunc(h.serveReady))
	if c.Metrics != nil {
		h.get("/metrics", c.Metrics)
	}
	// Controls and internals are guarded against other sites' pages. Those that are only for an operator on this
	// machine are also local.
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
		h.mux.Handle("/view/", withoutDeadline(http.StripPrefix("/view", c.Page))) // it checks the origin itself
	}
	// The path is registered even without Shutdown, because serveShutdown explains that it is disabled.
	h.mux.Handle("/shutdown", h.guarded(only(local(http.HandlerFunc(h.serveShutdown)), http.MethodPost)))
	return h
}

// writeTimeout is how long a client may take to read a response. A client that does not read holds
// memory and delays the shutdown. The value is three times Prometheus's scrape timeout.
const writeTimeout = 30 * time.Second

// ServeHTTP aborts a response that the client has not read within 30 s, if w supports write
// deadlines. The page has no such limit, because it streams.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // unsupported by some writers
	w.Header().Set("X-Content-Type-Options", "nosniff")
	h.mux.ServeHTTP(w, r)
}

// withoutDeadline returns a handler that removes the response's write deadline before it calls
// next.
func withoutDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		next.ServeHTTP(w, r)
	})
}

// Shutdown ends the streams of open pages, so that the server can shut down.
func (h *Handler) Shutdown() {
	if h.config.Page != nil {
		h.config.Page.Shutdown()
	}
}

// get registers serve for GET and HEAD requests to path. Other methods are rejected with 405.
func (h *Handler) get(path string, serve http.Handler) {
	h.mux.Handle(path, only(serve, http.MethodGet, http.MethodHead))
}

// serveReady responds with 200 once the proxy has been ready, and before that with 503.
func (h *Handler) serveReady(w http.ResponseWriter, r *http.Request) {
	if !h.ready.Load() && h.config.Ready != nil && !h.config.Ready() {
		writeText(w, http.StatusServiceUnavailable, "not ready\n")
		return
	}
	h.ready.Store(true) // a draining proxy stays ready, so that its last requests are not cut off
	writeText(w, http.StatusOK, "ready\n")
}

// maxFilterSize limits the size of a log filter in bytes.
const maxFilterSize = 16 << 10

// serveLevel responds to GET with the current log filter, and replaces it on PUT by the filter in the body.
func (h *Handler) serveLevel(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		writeText(w, http.StatusOK, h.config.Level.Filter().String()+"\n")
	case http.MethodPut:
		// The size is limited, because the whole body is read into memory.
		filter, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFilterSize))
		if err == nil {
			err = h.config.Level.Set(strings.TrimSpace(string(filter)))
		}
		if err != nil {
			writeText(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		notAllowed(w, http.MethodGet, http.MethodHead, http.MethodPut)
	}
}

// serveShutdown responds before it starts the shutdown, so that the client receives the response.
func (h *Handler) serveShutdown(w http.ResponseWriter, _ *http.Request) {
	if h.config.Shutdown == nil {
		writeText(w, http.StatusNotFound, "shutdown endpoint is not enabled\n")
		return
	}
	writeText(w, http.StatusOK, "shutdown\n")
	h.config.Shutdown()
}

// serveStack responds with the tree of the proxy's layers, as JSON if the client asks for it, otherwise as text.
func (h *Handler) serveStack(w http.ResponseWriter, r *http.Request) {
	tree := h.config.Describe()
	if r.URL.Query().Get("o") == "json" || strings.Contains(r.Header.Get("Accept"), "json") {
		writeJSON(w, http.StatusOK, tree)
		return
	}
	writeText(w, http.StatusOK, tree.String())
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, s) })
}

// writeText responds with a text.
func writeText(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s) //nolint:gosec // text/plain with nosniff
}
