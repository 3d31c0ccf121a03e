package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/rawio"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/h2"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Server serves accepted connections over HTTP/1.1 and HTTP/2. It is a [tcplayer.Server],
// which receives connections from tcplayer.Serve, tcplayer.DetectTLS or tcplayer.Detect.
// Its handler is a [Handler] or any other [http.Handler], such as a mux. The writer of the
// handler supports all methods of [http.ResponseController].
//
// TLS is terminated before the Server. If ALPN selected "h2", the Server speaks only HTTP/2.
// Any other connection uses HTTP/2 if it begins with the preface. [ConnFromContext] returns the
// connection of a request. The context of a request has the values of the ctx given to Call, and
// ends with the connection or earlier. A request that violates RFC 9112 or RFC 9113 does not
// reach the handler; see "Strictness" in the package documentation.
//
// WebSocket over HTTP/2 (RFC 8441) needs a [Handler] without a wrapper. Its svc receives a GET with
// the headers of an HTTP/1.1 upgrade, which an [Endpoint] sends over HTTP/1.1. A wrong
// Sec-WebSocket-Accept, and any 2xx, becomes 502. Other protocols of extended CONNECT become 501.
// With any other handler, the Server does not announce extended CONNECT, and clients use HTTP/1.1.
//
// Limits: each is a [ServerOption]. The defaults are 100 streams per HTTP/2 connection,
// headers of 32 KiB within 5 s, and 100 stream resets per second. A request body may pause
// for 10 s, and a client may pause reading for 5 minutes. Idle connections are kept, as in
// linkerd's proxy.
//
// All goroutines of a Server end when its Calls have returned. A Server is safe for
// concurrent use. See [Server.Drain] for draining.
type Server struct {
	serverOptions
	handler http.Handler
	sweeper sweep.Sweeper

	draining atomic.Bool
	conns    atomic.Int64
	empty    notify.Broadcast
}

var _ tcplayer.Server = (*Server)(nil)

// NewServer returns a Server that serves requests by h. A nil h panics.
func NewServer(h http.Handler, opts ...ServerOption) *Server {
	if h == nil {
		panic("httplayer: nil handler")
	}
	s := &Server{serverOptions: newServerOptions(opts), handler: h}
	s.Sweeper, s.ServerConfig.Draining = &s.sweeper, &s.draining
	if proxy, ok := h.(*handler); ok {
		s.Exchange = func(r *http.Request) (*http.Response, error) { return proxy.serve(r, true) }
	} else {
		s.ServerConfig.Handler = h
	}
	if s.drainOn != nil {
		context.AfterFunc(s.drainOn, s.drain)
	}
	return s
}

// Ready returns nil, even while the Server is draining, because accepted connections are
// still served.
func (s *Server) Ready(context.Context) error { return nil }

// Call serves the requests of conn until the connection is closed and its handlers have
// returned. A hijacked connection ends when the handler closes it. When ctx ends, the
// connection is closed at once, and the contexts of its requests end.
//
// Errors: a rejection ([layer.ErrNotReady]) if ctx has already ended. A [layer.Error] with
// the cause of ctx if ctx ended while the connection was open. A [layer.Error] with
// [io.ErrUnexpectedEOF], or another reason, if the connection ended before the first byte or
// without a complete preface of HTTP/2. A [layer.Error] with [layer.ErrTimeout] if the first
// byte or the first headers did not arrive in time. Any other end is not an error.
func (s *Server) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if ctx.Err() != nil {
		return tcplayer.ByteCount{}, &layer.Error{
			Layer: "server", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx),
		}
	}
	s.conns.Add(1)
	defer s.leave()
	c := &accepted{AheadConn: message.AheadConn{Conn: conn}, io: rawio.New(conn)}
	err := s.serve(context.WithValue(ctx, connKey{}, conn), c)
	if cause := context.Cause(ctx); cause != nil {
		err = &layer.Error{Layer: "server", Reason: "broken off", Err: cause}
	}
	return tcplayer.ByteCount{Sent: c.sent.Load(), Received: c.received.Load()}, err
}

// serve serves c by the HTTP/2 engine if ALPN selected "h2". Otherwise the HTTP/1.1 engine serves
// it, until the client sends the preface of HTTP/2.
func (s *Server) serve(ctx context.Context, c *accepted) (err error) {
	if state, _ := tcplayer.TLSState(c.Conn); state.NegotiatedProtocol == http2.String() {
		err = h2.NewServerConn(ctx, c, &s.ServerConfig).Serve()
	} else {
		err = h1.NewServerConn(ctx, c, &s.ServerConfig).Serve()
	}
	if preface, ok := errors.AsType[*h1.PrefaceError](err); ok {
		err = h2.NewServerConn(ctx, preface.Conn, &s.ServerConfig).Serve()
	}
	var malformed *h1.SyntaxError
	var early *layer.Error
	switch {
	case errors.As(err, &malformed):
		s.Log.Debug("malformed request", "client", c.RemoteAddr(), "error", malformed)
	case errors.As(err, &early) && early.Layer == "server":
		return early
	}
	return nil
}

func (s *Server) leave() {
	if s.conns.Add(-1) == 0 {
		s.empty.Wake()
	}
}

// Drain starts draining, which cannot be undone, and waits until all connections have closed.
// Existing and new connections are served until they close as follows. An HTTP/2 client receives a
// first GOAWAY and a PING. When it acknowledges the PING, or after [WithDrainTimeout], it receives
// the final GOAWAY. Its open streams finish. HTTP/1.1 responses have Connection: close. Idle
// HTTP/1.1 connections are closed after the same timeout. Drain also waits for upgraded connections
// and tunnels. [WithDrainOnDone] starts draining without waiting.
//
// If ctx ends first, the remaining connections continue. Drain then returns a [layer.Error]
// with their number and the cause of ctx. Drain may be called several times and
// concurrently.
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
	s.sweeper.Wake()
}

// Describe shows the number of connections, whether the Server is draining, and the maximum
// number of streams.
func (s *Server) Describe() layer.Node {
	n := layer.Node{Name: "server", State: layer.State{
		{Key: "connections", Value: s.conns.Load()}, {Key: "draining", Value: s.Draining()},
		{Key: "streams", Value: s.MaxStreams},
	}}
	if d, ok := s.handler.(layer.Describer); ok {
		n.Children = []layer.Node{d.Describe()}
	}
	return n
}

// accepted is a connection of a Server. It counts the bytes of both directions.
type accepted struct {
	message.AheadConn
	io             io.ReadWriter // reads and writes Conn
	sent, received atomic.Int64
}

func (c *accepted) Read(p []byte) (int, error) {
	n, err := c.io.Read(p)
	c.sent.Add(int64(n))
	return n, err
}

func (c *accepted) Write(p []byte) (int, error) {
	n, err := c.io.Write(p)
	c.received.Add(int64(n))
	return n, err
}

type connKey struct{}

// ConnFromContext returns the connection of a request to a [Server], or nil. Use it with
// tcplayer.OriginalDst and tcplayer.TLSState. The caller must not read, write or close it.
func ConnFromContext(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return conn
}
