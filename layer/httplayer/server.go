package httplayer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Server serves accepted connections by net/http. It is the [tcplayer.Server]
// at the end of tcplayer.Serve, tcplayer.DetectTLS and tcplayer.Detect:
//
//	tcplayer.Serve → Detect … → Server ─┬ HTTP/1.1 → Guard ─┬→ net/http → Handler
//	                                    └ HTTP/2 → GOAWAY ──┘
//
// HTTP/1.1 is checked by a [Guard]. HTTP/2 needs prior knowledge, because TLS
// ends before the Server. [ConnFromContext] returns the connection of a
// request. The context of a request has the values of the ctx given to Call and
// ends with the connection at the latest.
//
// Limits: see [ServerOption]. The defaults are 100 streams per HTTP/2
// connection, headers of 32 KiB within 5 s, and 100 stream resets per second. A
// request body may pause for 10 s, and the reading client for 5 minutes. Idle connections are kept, as in linkerd's proxy.
//
// Draining ([WithDrainOnDone], [Server.Drain]): every connection is still
// served, also new ones, until it can close. HTTP/2 clients get a first GOAWAY,
// and after its PING returns, or after [WithDrainTimeout], the final one;
// streams finish. HTTP/1.1 responses say Connection: close, and idle
// connections are closed after that timeout. Upgraded connections and tunnels
// are waited for. Nothing is cut before the ctx of Call ends.
//
// A Server starts nothing that outlives its Calls. It is safe for concurrent
// use.
type Server struct {
	serverOptions
	handler http.Handler
	h1      *http.Server

	draining atomic.Bool
	begun    context.Context //nolint:containedctx // ends when draining starts
	begin    context.CancelFunc
	lastCall sync.Once
	cut      cutOff

	conns atomic.Int64
	empty notify.Broadcast
}

var _ tcplayer.Server = (*Server)(nil)

// NewServer returns a Server that serves requests by h. It panics if h is nil.
func NewServer(h http.Handler, opts ...ServerOption) *Server {
	if h == nil {
		panic("httplayer: nil handler")
	}
	s := &Server{serverOptions: newServerOptions(opts), handler: h}
	s.begun, s.begin = context.WithCancel(context.Background())
	s.h1 = s.httpServer(h1Only())
	if s.drainOn != nil {
		context.AfterFunc(s.drainOn, s.drain)
	}
	return s
}

// Ready returns nil, also while draining, because accepted connections are
// still served.
func (s *Server) Ready(context.Context) error { return nil }

// Call serves the requests of conn until the connection is closed and its
// handlers have returned. A hijacked connection ends when its new owner closes
// it. When ctx ends, the connection is closed at once and the contexts of its
// requests end.
//
// Errors: a rejection ([layer.ErrNotReady]) if ctx has ended before; a
// [layer.Error] with the cause of ctx for a connection that was cut; one with
// [layer.ErrTimeout] for a connection without a first byte.
func (s *Server) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if ctx.Err() != nil {
		return tcplayer.ByteCount{}, &layer.Error{
			Layer: "server", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	s.conns.Add(1)
	defer s.leave()
	c := newAccepted(ctx, s, conn)
	defer c.cancel()
	stop := context.AfterFunc(ctx, func() { _ = panics.Contain(func() { _ = c.Close() }) })
	defer stop()

	err := c.serve()
	if cause := context.Cause(ctx); cause != nil {
		err = &layer.Error{Layer: "server", Reason: "broken off", Err: cause}
	}
	return tcplayer.ByteCount{Sent: c.sent.Load(), Received: c.received.Load()}, err
}

func (s *Server) leave() {
	if s.conns.Add(-1) == 0 {
		s.empty.Wake()
	}
}

// Drain starts draining, permanently, and waits until no connection is left. If
// ctx ends first, the remaining connections continue, and Drain returns a
// [layer.Error] with their number and the cause of ctx. It may be called
// several times, also concurrently.
func (s *Server) Drain(ctx context.Context) error {
	start := time.Now()
	s.drain()
	none := func() bool { return s.conns.Load() == 0 }
	err := s.empty.Wait(ctx, none)
	if err == nil || none() {
		return nil
	}
	return &layer.Error{
		Layer: "server", Reason: fmt.Sprintf("%d connections are still open", s.conns.Load()),
		Waited: time.Since(start), Err: err,
	}
}

// Draining reports whether draining has started.
func (s *Server) Draining() bool { return s.draining.Load() }

func (s *Server) drain() {
	s.draining.Store(true)
	s.begin()
}

// closeIdle closes idle HTTP/1.1 connections and makes net/http close the
// others after their response. net/http's Shutdown would drop requests that
// were just read.
func (s *Server) closeIdle() {
	s.lastCall.Do(func() { s.h1.SetKeepAlivesEnabled(false) })
}

// Describe returns the number of connections and the limits.
func (s *Server) Describe() layer.Node {
	n := layer.Node{Name: "server", State: layer.State{
		{Key: "connections", Value: s.conns.Load()}, {Key: "draining", Value: s.Draining()},
		{Key: "streams", Value: s.http2.MaxConcurrentStreams},
	}}
	if d, ok := s.handler.(layer.Describer); ok {
		n.Children = []layer.Node{d.Describe()}
	}
	return n
}

// serveHTTP is the handler of every request.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*accepted)
	if !ok || !c.enter() {
		return // the connection is closed, so a response would be lost
	}
	defer c.leave()
	if r.ProtoMajor == 1 && s.draining.Load() && r.Header.Get("Upgrade") == "" && r.Method != http.MethodConnect {
		w.Header().Set("Connection", "close")
	}
	if body := s.pace(w, r, c); body != nil {
		defer body.stop()
		own := r.WithContext(r.Context()) // the server keeps using its own request
		own.Body = body
		defer handBack(r, own)
		r = own
	}
	s.handler.ServeHTTP(w, r)
}

type connKey struct{}

// ConnFromContext returns the connection of a request to a [Server], or nil.
// Use it with tcplayer.OriginalDst and tcplayer.TLSState. It must not be read,
// written or closed.
func ConnFromContext(ctx context.Context) net.Conn {
	if c, ok := ctx.Value(connKey{}).(*accepted); ok {
		return c.Conn
	}
	return nil
}

var (
	errSilent    = errors.New("the client said nothing")
	errBrokenOff = errors.New("the client did not go on")
)
