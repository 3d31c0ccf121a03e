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

// Server serves accepted connections over HTTP/1.1 and HTTP/2. It is a [tcplayer.Server], which receives
// connections from tcplayer.Serve, tcplayer.DetectTLS or tcplayer.Detect. It passes requests to a
// [Service], like a [Handler] in a net/http server, but is full duplex and resets a stream with the
// endpoint's code. Use [FromHandler] to make a mux a Service.
//
// TLS is terminated before the Server, so that Request.TLS is nil and layers read the scheme http; see
// [WithScheme]. If ALPN selected "h2", the Server speaks only HTTP/2. Any other connection uses HTTP/2 if
// it begins with the preface. [ConnFromContext] returns a request's connection. The context carries the
// values from Call's ctx, and ends with the connection or earlier. A request that violates RFC 9112 or RFC
// 9113 does not reach the service; see "Strictness" in the package documentation.
//
// WebSocket over HTTP/2 (RFC 8441): the service receives a GET with the headers for an HTTP/1.1 upgrade,
// which an [Endpoint] sends over HTTP/1.1. A wrong Sec-WebSocket-Accept, and any 2xx, becomes 502. Other
// protocols of extended CONNECT become 501.
//
// Limits: each is a [ServerOption]. By default an HTTP/2 connection has 100 streams and 100 resets per
// second, headers have 256 KiB and 1 minute, a request body with a length may pause for 1 minute, and a
// client may pause reading for 5 minutes. Idle connections are kept, as in linkerd's proxy.
//
// A Server is safe for concurrent use. Its goroutines end when its Calls have returned; see [Server.Drain].
type Server struct {
	serverOptions
	sweeper sweep.Sweeper // one goroutine that checks the time limits of all connections

	draining atomic.Bool      // a drain has begun, so that each connection ends after its current requests
	conns    atomic.Int64     // number of connections being served
	empty    notify.Broadcast // woken when conns falls to 0, for Drain
}

var _ tcplayer.Server = (*Server)(nil)

// NewServer returns a Server that serves requests by svc. A nil svc panics.
func NewServer(svc Service, opts ...ServerOption) *Server {
	s := &Server{serverOptions: newServerOptions(svc, opts)}
	// The engines reach the sweeper and the flag through the ServerConfig.
	s.Sweeper, s.ServerConfig.Draining = &s.sweeper, &s.draining
	if s.drainOn != nil {
		context.AfterFunc(s.drainOn, s.drain)
	}
	return s
}

// Ready returns nil, even while the Server is draining, because accepted connections are
// still served.
func (s *Server) Ready(context.Context) error { return nil }

// Call serves the requests of conn until the connection is closed. When ctx ends, the connection
// is closed at once, and its requests' contexts end.
//
// Errors: a rejection ([layer.ErrNotReady]) if ctx has already ended; otherwise a [layer.Error]
// with ctx's cause if ctx ended while the connection was open, with [layer.ErrTimeout] if the
// first byte or the first headers did not arrive in time, and with [io.ErrUnexpectedEOF], or
// another reason, if the connection ended before the first byte or without a complete HTTP/2
// preface. Any other end is not an error.
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
	c := &accepted{AheadConn: message.AheadConn{Conn: conn}, io: rawio.New(conn)}
	err := s.serve(context.WithValue(ctx, connKey{}, conn), c)
	// The end of ctx closes the connection, so err would only be a consequence of it.
	if cause := context.Cause(ctx); cause != nil {
		err = &layer.Error{Layer: "server", Reason: "broken off", Err: cause}
	}
	return tcplayer.ByteCount{Sent: c.sent.Load(), Received: c.received.Load()}, err
}

// serve serves c with the engine for the HTTP version that the client uses. That is HTTP/2 if ALPN
// selected "h2". Otherwise the HTTP/1.1 engine begins, and hands over to HTTP/2 if the client sends its
// preface.
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
	// Other ends of a connection are normal; see Call.
	if early, ok := errors.AsType[*layer.Error](err); ok && early.Layer == "server" {
		return early
	}
	return nil
}

// selectedH2 reports whether ALPN selected HTTP/2. It is not inlined, because the TLS state in
// serve's frame would double a connection's stack to 16 KiB.
//
//go:noinline
func selectedH2(conn net.Conn) bool {
	state, _ := tcplayer.TLSState(conn)
	return state.NegotiatedProtocol == http2.String()
}

// Drain starts draining, which cannot be undone, and waits until all connections have closed.
// Existing and new connections are served until they close as follows. An HTTP/2 client receives a
// first GOAWAY and a PING. When it acknowledges the PING, or after [WithDrainTimeout], it receives
// the final GOAWAY. Its open streams finish. HTTP/1.1 responses carry Connection: close, and idle
// HTTP/1.1 connections are closed after the same timeout. Drain also waits for upgraded connections
// and tunnels. [WithDrainOnDone] starts draining without waiting.
//
// If ctx ends first, the remaining connections continue. Drain then returns a [layer.Error] with
// their number and ctx's cause. Drain may be called several times and concurrently.
func (s *Server) Drain(ctx context.Context) error {
	start := time.Now()
	s.drain()
	none := func() bool { return s.conns.Load() == 0 }
	// The connections may have closed just as ctx ended.
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

// drain makes all connections drain. The sweeper, a goroutine that checks all connections, tells them, and is woken
// because it may sleep.
func (s *Server) drain() {
	s.draining.Store(true)
	s.sweeper.Wake()
}

// Describe shows how many connections there are, whether the Server is draining, and the maximum
// number of streams.
func (s *Server) Describe() layer.Node {
	n := layer.Node{Name: "server", State: layer.State{
		{Key: "connections", Value: s.conns.Load()}, {Key: "draining", Value: s.Draining()},
		{Key: "streams", Value: s.MaxStreams},
	}}
	n.Children = []layer.Node{s.handler.Describe()}
	return n
}

// accepted is a connection of a Server. It counts the bytes, as seen from the client: sent are those
// that this side has read.
type accepted struct {
	message.AheadConn
	io             io.ReadWriter // reads and writes Conn
	sent, received atomic.Int64
}

// Read reads from the connection and counts the bytes.
func (c *accepted) Read(p []byte) (int, error) {
	if len(c.Ahead) > 0 { // was counted before
		return c.AheadConn.Read(p)
	}
	n, err := c.io.Read(p)
	c.sent.Add(int64(n))
	return n, err
}

// Write writes to the connection and counts the bytes.
func (c *accepted) Write(p []byte) (int, error) {
	n, err := c.io.Write(p)
	c.received.Add(int64(n))
	return n, err
}

// connKey is the context key of a request's connection.
type connKey struct{}

// ConnFromContext returns the connection of a request to a [Server], or nil. You can pass it to
// tcplayer.OriginalDst and tcplayer.TLSState. The caller must not read, write or close it.
func ConnFromContext(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return conn
}

// ServerOption is an option of [NewServer]. Each [HandlerOption] is a ServerOption.
type ServerOption interface{ apply(o *serverOptions) }

// serverOption makes a function a ServerOption.
type serverOption func(*serverOptions)

func (f serverOption) apply(o *serverOptions) { f(o) }

// apply applies f to the handler in o. f may be nil.
func (f HandlerOption) apply(o *serverOptions) {
	if f != nil {
		f(o.handler)
	}
}

// serverOptions holds a Server's settings: those of its connections and those of its handler.
type serverOptions struct {
	message.ServerConfig
	handler *handler
	drainOn context.Context //nolint:containedctx // its end starts draining
}

// WithDrainOnDone starts draining when ctx ends. Use the ctx of tcplayer.Serve. When that
// ctx ends, Serve closes the listener and waits for the connections.
func WithDrainOnDone(ctx context.Context) ServerOption {
	return serverOption(func(o *serverOptions) { o.drainOn = ctx })
}

// WithDrainTimeout sets how long two steps of draining take: an HTTP/2 client gets d to
// acknowledge the GOAWAY, and an idle HTTP/1.1 connection stays open for d, where a request in
// this time is answered with Connection: close. The default is 1 s. If d is 0 or less, idle
// connections are closed at once, and requests in transit are lost. But a new connection on which
// no byte has arrived stays open for at least 100 ms.
func WithDrainTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.DrainTimeout = max(d, 0) })
}

// WithMaxHeaderBytes limits the size of a request's headers. A request with larger headers is
// answered with 431. In HTTP/2, 32 bytes are added for each field. The default is 256 KiB, which
// is more than applications send. An n of 0 or less selects the default.
func WithMaxHeaderBytes(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxHeaderBytes = n })
}

// WithHeaderTimeout limits the time from accept to the first byte, and from a request's first
// byte to the end of its headers. After the limit the connection is closed, and a request that
// has begun is answered with 408. The default is 1 minute, as in nginx. A d of 0 or less means no
// limit. While draining, the first byte must arrive within [WithDrainTimeout].
func WithHeaderTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.HeaderTimeout = max(d, 0) })
}

// WithServerIdleTimeout limits the time that a connection may be idle between two requests.
// The default, and a d of 0 or less, means no limit, as in linkerd's proxy.
func WithServerIdleTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.IdleTimeout = max(d, 0) })
}

// WithMinBodyRate limits how slowly a request body may arrive. idle is the longest pause. least is
// the lowest average rate, in bytes per second. The average includes only the time in which the
// handler waits for the body. It is checked after the handler has waited for longer than idle and
// longer than one second in total. If a limit is exceeded, reading fails with an error that matches
// [layer.ErrIdleTimeout] and is answered with 408. If the handler does not read an HTTP/1.1 body to
// its end, the rest must arrive within idle, but at most 10 s. Otherwise the connection is closed
// after the response.
//
// The default is a pause of 1 minute, as in nginx, and no limit on the rate. A value of 0 or less for
// idle means no limit on pauses, and for least no limit on the rate. The limits do not apply to gRPC,
// to Connect and to bodies without a content-length, because pauses are normal in a stream.
func WithMinBodyRate(idle time.Duration, least int) ServerOption {
	return serverOption(func(o *serverOptions) { o.BodyIdle, o.MinBodyRate = max(idle, 0), max(least, 0) })
}

// WithWriteTimeout closes a connection whose client accepts no byte for d. An HTTP/2 stream is
// reset if its client gives no flow-control window for d. The limit does not apply to HTTP/1.1
// tunnels. The default is 5 minutes, which allows paused downloads. A d of 0 or less means no
// limit.
func WithWriteTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.WriteTimeout = max(d, 0) })
}

// WithMaxStreamResets limits how many streams on an HTTP/2 connection may be reset by either side.
// Each reset takes a token from a bucket of n tokens. The bucket regains n tokens per second, and
// one token for each final response. Resetting a stream that was open for 250 ms or longer takes no
// token. If the bucket is empty, the connection receives GOAWAY(ENHANCE_YOUR_CALM) and is closed.
// Without the limit, a client could cause many upstream requests by canceling streams
// (CVE-2023-44487, CVE-2025-8671). The default is the maximum number of concurrent streams. An n of
// 0 or less selects the default.
func WithMaxStreamResets(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxStreamResets = n })
}

// WithHTTP2Config sets the HTTP/2 parameters. Zero fields select the defaults, which are those of
// linkerd's proxy. Fields that are not listed are ignored:
//
//	MaxConcurrentStreams           100
//	MaxReceiveBufferPerStream      65,535
//	MaxReceiveBufferPerConnection  1,048,576
//	MaxReadFrameSize               16,384, at most 61,440
//	SendPingTimeout                0, which disables PING frames
//	PingTimeout                    15 s
func WithHTTP2Config(cfg http.HTTP2Config) ServerOption {
	return serverOption(func(o *serverOptions) {
		o.MaxStreams, o.MaxFrameSize = cfg.MaxConcurrentStreams, cfg.MaxReadFrameSize
		o.StreamWindow, o.ConnWindow = cfg.MaxReceiveBufferPerStream, cfg.MaxReceiveBufferPerConnection
		o.PingInterval, o.PingTimeout = cfg.SendPingTimeout, cfg.PingTimeout
	})
}

// Refusal describes a request that a [Server] refused by itself; see [WithRefused].
type Refusal = message.Refusal

// WithRefused sets a function that is called for each request that the Server refuses by itself, which
// no layer sees. [WithAccessLog] and [WithOnResponse] include these requests, too. The request is
// malformed (400), too large (414, 431), not supported (501, 505), or its headers did not arrive in
// time (408). If violating HTTP/2 ends a connection, that counts as one refused request. The
// [ErrorHandler] writes the response, if there is one.
//
// The context is the connection's; see [ConnFromContext]. f is called concurrently, once per refused
// request. It should return soon, because the connection waits for it.
// The default is nil, which means no calls.
func WithRefused(f func(ctx context.Context, r Refusal)) ServerOption {
	return serverOption(func(o *serverOptions) { o.Refused = f })
}

// newServerOptions returns the options in opts, with defaults for what they leave out.
func newServerOptions(svc Service, opts []ServerOption) serverOptions {
	o := serverOptions{handler: newHandler(svc), ServerConfig: message.ServerConfig{
		DrainTimeout: time.Second, HeaderTimeout: time.Minute,
		BodyIdle: time.Minute, WriteTimeout: 5 * time.Minute,
	}}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	// A net/http server cannot reset a stream with a chosen code, but a Server can.
	o.handler.resets = true
	o.handler.configure(&o.ServerConfig)
	// In these fields 0 means the default. In those above, 0 means no limit, so that their defaults were set first.
	orElse(&o.MaxHeaderBytes, 256<<10)
	orElse(&o.MaxStreams, 100)
	orElse(&o.StreamWindow, 1<<16-1)
	orElse(&o.ConnWindow, 1<<20)
	orElse(&o.MaxFrameSize, 16<<10)
	orElse(&o.PingTimeout, 15*time.Second)
	orElse(&o.MaxStreamResets, o.MaxStreams)
	return o
}

// orElse sets *v to otherwise if it is 0 or less, which means that the option was not set.
func orElse[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
