package httplayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/option"
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
// TLS is terminated before the Server, so that Request.TLS is nil and layers read the scheme http. A
// gateway sets the scheme of the URL before a [Handler]. If ALPN selected "h2", the Server speaks
// only HTTP/2. Any other connection uses HTTP/2 if it begins with the preface. [ConnFromContext]
// returns the connection of a request. The context has the values of the ctx given to Call, and
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
	std     *http.Server // value of http.ServerContextKey; nil if handler is a Handler
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
		s.std = &http.Server{Handler: h} //nolint:gosec // it serves no connections
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
	defer func() {
		if s.conns.Add(-1) == 0 {
			s.empty.Wake()
		}
	}()
	if s.std != nil { // httputil.ReverseProxy aborts a response only if this value is set
		ctx = context.WithValue(ctx, http.ServerContextKey, s.std)
	}
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
	if selectedH2(c.Conn) {
		err = h2.NewServerConn(ctx, c, &s.ServerConfig).Serve()
	} else {
		err = h1.NewServerConn(ctx, c, &s.ServerConfig).Serve()
	}
	if preface, ok := errors.AsType[*h1.PrefaceError](err); ok {
		c.Ahead = preface.Ahead
		err = h2.NewServerConn(ctx, c, &s.ServerConfig).Serve()
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

// selectedH2 reports whether ALPN selected HTTP/2. It is not inlined, because the TLS state in the
// frame of serve would double the stack of a connection to 16 KiB.
//
//go:noinline
func selectedH2(conn net.Conn) bool {
	state, _ := tcplayer.TLSState(conn)
	return state.NegotiatedProtocol == http2.String()
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
	if len(c.Ahead) > 0 { // was counted before
		return c.AheadConn.Read(p)
	}
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

// ServerOption is an option of [NewServer].
type ServerOption func(*serverOptions)

type serverOptions struct {
	message.ServerConfig
	drainOn context.Context //nolint:containedctx // its end starts draining
}

// WithDrainOnDone starts draining when ctx ends. Use the ctx of tcplayer.Serve. When that
// ctx ends, Serve closes the listener and waits for the connections.
func WithDrainOnDone(ctx context.Context) ServerOption {
	return func(o *serverOptions) { o.drainOn = ctx }
}

// WithDrainTimeout sets the duration of two steps of draining. An HTTP/2 client has the time d to
// acknowledge the GOAWAY. An idle HTTP/1.1 connection stays open for the time d. The response to a
// request in this time has Connection: close. The default is 1 s. If d is 0 or less, idle
// connections are closed at once, and requests in transit are lost. But a new connection on which
// no byte has arrived stays open for at least 100 ms.
func WithDrainTimeout(d time.Duration) ServerOption {
	return func(o *serverOptions) { o.DrainTimeout = max(d, 0) }
}

// WithMaxHeaderBytes limits the size of the headers of a request. A request with larger
// headers is answered with 431. In HTTP/2, 32 bytes are added for each field. The default
// is 32 KiB. An n of 0 or less selects the default.
func WithMaxHeaderBytes(n int) ServerOption {
	return func(o *serverOptions) { o.MaxHeaderBytes = n }
}

// WithHeaderTimeout limits the time from accept to the first byte, and from the first byte
// of a request to the end of its headers. After the limit the connection is closed. The
// default is 5 s. A d of 0 or less means no limit. While draining, the first byte must
// arrive within [WithDrainTimeout].
func WithHeaderTimeout(d time.Duration) ServerOption {
	return func(o *serverOptions) { o.HeaderTimeout = max(d, 0) }
}

// WithServerIdleTimeout limits the time that a connection may be idle between two requests.
// The default, and a d of 0 or less, means no limit, as in linkerd's proxy.
func WithServerIdleTimeout(d time.Duration) ServerOption {
	return func(o *serverOptions) { o.IdleTimeout = max(d, 0) }
}

// WithMinBodyRate limits how slowly a request body may arrive. The argument idle is the longest
// pause. The argument least is the lowest average rate, in bytes per second. The average includes
// only the time in which the handler waits for the body. It is checked after the handler has waited
// for longer than idle and longer than one second in total. If a limit is exceeded, reading fails
// with an error that matches [layer.ErrIdleTimeout] and is answered with 408. If the handler does
// not read an HTTP/1.1 body to its end, the rest must arrive within idle. Otherwise the connection
// is closed after the response.
//
// The default is 10 s and 240 bytes per second. A value of 0 or less for idle means no limit on
// pauses, and for least no limit on the rate. The limits do not apply to gRPC, to Connect and to
// HTTP/2 bodies without a content-length, because pauses are normal in a stream.
func WithMinBodyRate(idle time.Duration, least int) ServerOption {
	return func(o *serverOptions) { o.BodyIdle, o.MinBodyRate = max(idle, 0), max(least, 0) }
}

// WithWriteTimeout closes the connection of a client that accepts no byte for d. An HTTP/2
// stream is reset if its client gives no flow-control window for d. The limit does not
// apply to HTTP/1.1 tunnels. The default is 5 minutes, which allows paused downloads. A d
// of 0 or less means no limit.
func WithWriteTimeout(d time.Duration) ServerOption {
	return func(o *serverOptions) { o.WriteTimeout = max(d, 0) }
}

// WithMaxStreamResets limits how many streams of an HTTP/2 connection may end by a reset of either
// side. Each reset takes a token from a bucket of n tokens. The bucket regains n tokens per second,
// and one token for each final response. The reset of a stream that was open for 250 ms or longer
// takes no token. If the bucket is empty, the connection receives GOAWAY(ENHANCE_YOUR_CALM) and is
// closed. Without the limit, a client could cause many upstream requests by canceling streams
// (CVE-2023-44487, CVE-2025-8671). The default is the maximum number of concurrent streams. An n of
// 0 or less selects the default.
func WithMaxStreamResets(n int) ServerOption {
	return func(o *serverOptions) { o.MaxStreamResets = n }
}

// WithHTTP2Config sets the parameters of HTTP/2. A zero field selects the default, which is
// that of linkerd's proxy. Fields that are not listed are ignored:
//
//	MaxConcurrentStreams           100
//	MaxReceiveBufferPerStream      65,535
//	MaxReceiveBufferPerConnection  1,048,576
//	MaxReadFrameSize               16,384, at most 61,440
//	SendPingTimeout                0, which disables PING frames
//	PingTimeout                    15 s
func WithHTTP2Config(cfg http.HTTP2Config) ServerOption {
	return func(o *serverOptions) {
		o.MaxStreams, o.MaxFrameSize = cfg.MaxConcurrentStreams, cfg.MaxReadFrameSize
		o.StreamWindow, o.ConnWindow = cfg.MaxReceiveBufferPerStream, cfg.MaxReceiveBufferPerConnection
		o.PingInterval, o.PingTimeout = cfg.SendPingTimeout, cfg.PingTimeout
	}
}

// WithServerLogger sets the logger for malformed requests, at level Debug, and for panics
// of handlers, at level Error. The default is nil, which means no log.
func WithServerLogger(l *slog.Logger) ServerOption {
	return func(o *serverOptions) { o.Log = l }
}

func newServerOptions(opts []ServerOption) serverOptions {
	o := serverOptions{ServerConfig: message.ServerConfig{
		DrainTimeout: time.Second, HeaderTimeout: 5 * time.Second,
		BodyIdle: 10 * time.Second, MinBodyRate: 240, WriteTimeout: 5 * time.Minute,
	}}
	option.Apply(&o, opts)
	o.Log = limitedLog(o.Log)
	orElse(&o.MaxHeaderBytes, 32<<10)
	orElse(&o.MaxStreams, 100)
	orElse(&o.StreamWindow, 1<<16-1)
	orElse(&o.ConnWindow, 1<<20)
	orElse(&o.MaxFrameSize, 16<<10)
	orElse(&o.PingTimeout, 15*time.Second)
	orElse(&o.MaxStreamResets, o.MaxStreams)
	return o
}

func orElse[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
