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

	"github.com/gotower/gotower/internal/left"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/wake"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Server serves connections that somebody else accepted by net/http: it is the
// [tcplayer.Server] at the end of tcplayer.Serve, tcplayer.DetectTLS and
// tcplayer.Detect.
//
//	tcplayer.Serve → Detect … → Server ─┬ HTTP/1.1 → Guard ─┬→ net/http → Handler
//	                                    └ HTTP/2 → GOAWAY ──┘
//
// HTTP/1.1 is guarded (see [Guard]); HTTP/2 is that of prior knowledge, which
// is what is inside of TLS that ended before. The RemoteAddr of a request is that
// of its connection, and so is the [http.LocalAddrContextKey] of its context; the
// connection itself is what [ConnFromContext] returns. The context of a request has the
// values of the ctx given to Call, and ends with the connection at the latest.
//
// # Limits
//
// What a client may cost has bounds, each with an option to change it or switch
// it off: 100 streams for each connection of HTTP/2, a header of 32 KiB that
// comes within 5 s, a request body that does not stand still for 10 s, a
// response that the client reads within 5 minutes, and 100 streams a second that
// it takes back. They are there for those who would hold memory, goroutines and
// upstream requests for nothing. HTTP/2 connections and kept HTTP/1.1 ones may
// be idle for as long as they like, as in linkerd's proxy.
//
// # Draining
//
// When draining begins ([WithDrainOnDone], [Server.Drain]) every connection is still
// served, also those that come after that, and each is brought to its end:
//
//   - HTTP/2: the client is told to open no more streams, by a GOAWAY that
//     still takes those which are on their way. When a PING says that the client
//     has read it, or after a second ([WithDrainTimeout]), net/http sends the GOAWAY
//     that names the last stream, finishes the streams, and closes.
//   - HTTP/1.1: answers that begin now ask the client to close. After a second,
//     those who stayed idle are closed, and those on which nothing was said yet;
//     the others once they are answered.
//   - upgraded connections and tunnels are waited for.
//
// Nothing is cut before the ctx of Call ends; tcplayer.Serve ends it once the
// grace is over.
//
// A Server starts nothing that outlives its Calls. It is safe for concurrent use.
type Server struct {
	serverOptions
	handler http.Handler
	h1      *http.Server

	draining atomic.Bool
	begun    context.Context //nolint:containedctx // it ends when draining begins
	begin    context.CancelFunc
	lastCall sync.Once
	cut      cutOff

	conns atomic.Int64
	empty wake.Broadcast
}

var _ tcplayer.Server = (*Server)(nil)

// NewServer returns a Server that serves requests by h. A nil h panics.
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

// Ready returns nil: a Server that drains serves what was accepted before.
func (s *Server) Ready(context.Context) error { return nil }

// Call serves the requests of conn until that is over, which is when it was
// closed and its handlers have returned. Of a connection that a handler hijacked,
// that is when whoever did it has closed it. When ctx ends, the connection is
// closed at once and the contexts of its requests end; Call returns then, as soon
// as the handlers do.
//
// Errors: a refusal ([layer.ErrNotReady]) if ctx is done already; an
// [layer.Error] with the cause of ctx for a connection that was cut, or with
// [layer.ErrTimeout] for one on which nothing was said.
func (s *Server) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if ctx.Err() != nil {
		return tcplayer.ByteCount{}, &layer.Error{
			Layer: "server", Kind: layer.ErrNotReady, Reason: left.Why(ctx), Err: context.Cause(ctx),
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

// Drain begins to drain, for good, and waits until no connection is left. If ctx
// ends first, those that are left go on, and Drain returns an [layer.Error]
// that says how many they are and matches the cause of ctx; with a ctx that is
// done it does not wait. It may be called again, and by several at once.
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

// Draining reports whether draining has begun.
func (s *Server) Draining() bool { return s.draining.Load() }

func (s *Server) drain() {
	s.draining.Store(true)
	s.begin()
}

// closeIdle closes the HTTP/1.1 connections that are idle, and has net/http
// close the others after the answer. net/http's own Shutdown would drop requests
// that have just been read.
func (s *Server) closeIdle() {
	s.lastCall.Do(func() { s.h1.SetKeepAlivesEnabled(false) })
}

// Describe shows the number of connections and the limits.
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
		return // the connection is closed, and nobody would read the answer
	}
	defer c.leave()
	if r.ProtoMajor == 1 && s.draining.Load() && r.Header.Get("Upgrade") == "" && r.Method != http.MethodConnect {
		w.Header().Set("Connection", "close")
	}
	if body := s.pace(w, r, c); body != nil {
		defer body.stop()
		own := r.WithContext(r.Context()) // the server looks at its own
		own.Body = body
		defer handBack(r, own)
		r = own
	}
	s.handler.ServeHTTP(w, r)
}

type connKey struct{}

// ConnFromContext returns the connection that a request came by to a [Server], as that
// was given it: tcplayer.OriginalDst and tcplayer.TLSState tell more of it. It
// must not be read, written or closed. Of the context of any other request it
// returns nil.
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
