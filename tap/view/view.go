package view

import (
	"context"
	"iter"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// Source provides the requests that the page shows. [tap.Registry] implements it.
type Source interface {
	Watch(ctx context.Context, req *tappb.WatchRequest) iter.Seq2[tap.Event, error]
	Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error]
}

// Config configures a [Handler].
type Config struct {
	Registry Source // source of the requests; nil means no requests
	// Describe returns the layers of the process. It must not block. nil means that no
	// layers are shown.
	Describe func() layer.Node
	Title    string // name of the process; default "gotower"

	Authorize func(*http.Request) error // returns an error to reject a client; default Loopback
	Hosts     []string                  // allowed host names besides localhost, without a port

	// Totals selects the requests of the totals and charts by their direction. A proxy with a tap in
	// both directions sets it to tap.Inbound, because it would otherwise count a request's attempts as
	// further requests. The default 0 selects both directions.
	Totals tap.Direction
}

// Handler serves the page, its files and its streams. Mount it below a path with
// [http.StripPrefix]. It is safe for concurrent use, and runs no goroutine while no page is open.
type Handler struct {
	config     Config
	live       live
	batchEvery time.Duration
	// beatEvery is the interval at which empty batches are sent, because only a write
	// detects a lost client.
	beatEvery    time.Duration
	writeTimeout time.Duration // limit for writing one event
	started      time.Time
	edition      string

	down    chan struct{}
	once    sync.Once
	streams atomic.Int64
}

// maxStreams is how many streams may be open. Each page uses up to two.
const maxStreams = 64

// New returns a Handler. You should register its Shutdown with the HTTP server, as shown.
// Otherwise shutting down the HTTP server waits for the streams of open pages:
//
//	server.RegisterOnShutdown(handler.Shutdown)
func New(c Config) *Handler {
	// An interface may also hold a nil Registry.
	if r, ok := c.Registry.(*tap.Registry); c.Registry == nil || ok && r == nil {
		c.Registry = new(tap.Registry)
	}
	if c.Title == "" {
		c.Title = "gotower"
	}
	if c.Authorize == nil {
		c.Authorize = Loopback
	}
	h := &Handler{
		config: c, batchEvery: 200 * time.Millisecond, beatEvery: 5 * time.Second, writeTimeout: 10 * time.Second,
		started: time.Now(), edition: pageVersion(), down: make(chan struct{}),
	}
	h.live.config = c
	h.live.every = time.Second
	return h
}

// Shutdown ends the streams of all open pages and rejects new streams. It does not wait for
// them, and may be called more than once.
func (h *Handler) Shutdown() { h.once.Do(func() { close(h.down) }) }

// ServeHTTP serves the page, its files and its streams.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "view: only GET and HEAD are served", http.StatusMethodNotAllowed)
		return
	}
	if err := h.permit(r); err != nil {
		http.Error(w, "view: "+err.Error(), http.StatusForbidden)
		return
	}
	switch name := strings.TrimPrefix(r.URL.Path, "/"); {
	case r.URL.Path == "" && !strings.HasSuffix(requestPath(r), "/"):
		// The page uses relative URLs. "./" keeps a colon in the path from ending a scheme.
		w.Header().Set("Location", "./"+path.Base(requestPath(r))+"/")
		w.WriteHeader(http.StatusMovedPermanently)
	case name == "live":
		h.stream(w, r, h.serveLive)
	case name == "tap":
		h.stream(w, r, h.serveTap)
	default:
		h.serveAsset(w, r, name)
	}
}

// requestPath returns the path of r as the client sent it. It includes the prefix that
// StripPrefix removed.
func requestPath(r *http.Request) string {
	p, _, _ := strings.Cut(r.RequestURI, "?")
	return p
}

// stream responds with a stream of server-sent events, which serve sends. If too many are open, or the
// server is shutting down, it responds with 503.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request, serve func(*stream, *http.Request)) {
	select {
	case <-h.down:
		http.Error(w, "view: the server is shutting down", http.StatusServiceUnavailable)
		return
	default:
	}
	if h.streams.Add(1) > maxStreams {
		h.streams.Add(-1)
		http.Error(w, "view: too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer h.streams.Add(-1)
	s := newStream(w, h.writeTimeout)
	// HEAD gets the headers only.
	if r.Method == http.MethodGet {
		serve(s, r)
	}
}
