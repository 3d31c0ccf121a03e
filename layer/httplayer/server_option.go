package httplayer

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// ServerOption sets how a [Server] works.
type ServerOption interface{ apply(o *serverOptions) }

type serverOption func(*serverOptions)

func (f serverOption) apply(o *serverOptions) { f(o) }

type serverOptions struct {
	drainOn       context.Context //nolint:containedctx // not a request's: it ends when draining is to begin
	patience      time.Duration
	maxHeader     int
	headerTimeout time.Duration
	keepAlive     time.Duration
	bodyIdle      time.Duration
	bodyRate      int
	writeStall    time.Duration
	takenBack     int
	http2         http.HTTP2Config
	guard         *Guard
	log           *slog.Logger
}

// WithDrainOnDone begins to drain when ctx ends. Give it the ctx of tcplayer.Serve: that
// closes the listener then, and lets the connections end by themselves.
func WithDrainOnDone(ctx context.Context) ServerOption {
	return serverOption(func(o *serverOptions) { o.drainOn = ctx })
}

// WithDrainTimeout is how long draining waits for a client of HTTP/2 to say that it
// knows, and for a client of HTTP/1.1 to send another request on an idle
// connection: with that, it can be told. The default is 1 s; with a d of 0 or
// less, idle connections are closed at once, and requests that are on their way
// to them are lost. A client that has said nothing since it connected has as much, and
// 100 ms at least.
func WithDrainTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.patience = max(d, 0) })
}

// WithMaxHeaderBytes bounds the header of a request; one that is larger is answered
// with 431. In HTTP/2 each field counts 32 bytes more than its text. The default
// is 32 KiB, and so it is with an n of 0 or less; net/http adds up to 4 KiB.
func WithMaxHeaderBytes(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.maxHeader = n })
}

// WithHeaderTimeout is how long the header of an HTTP/1.1 request may take from its
// first byte on, and the first byte of a connection. The connection is closed
// then. The default is 5 s; a d of 0 or less sets no limit. While the server drains the
// first byte has no longer than [WithDrainTimeout].
func WithHeaderTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.headerTimeout = max(d, 0) })
}

// WithServerIdleTimeout is how long a connection may be idle between two requests. The
// default, and a d of 0 or less, is no limit, as in linkerd's proxy.
func WithServerIdleTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.keepAlive = max(d, 0) })
}

// WithMinBodyRate bounds how slowly a request body may come: at no time may nothing
// come for idle, and beyond a first idle there must be least bytes for each
// second. Only the time counts in which the handler waits for the body. When it
// is over, reading fails, by an error that matches [layer.ErrIdleTimeout] and is
// answered with 408. What the handler of an HTTP/1.1 request leaves of the body
// when it closes it, begins to answer, or returns, has idle to come, all together; then the
// request is answered, and the connection closed. A handler that goes on answering
// then finds that its context has ended. The default is 10 s and 240 bytes, which
// cuts those who trickle, and no honest upload on a bad line; an idle of 0 or less
// sets no limit, and a least of 0 or less no rate.
//
// Bodies that are conversations have no pace: those of gRPC, and of HTTP/2 without
// a content-length. What they can hold is a stream, of which there are as many as
// the connection may have. Those of HTTP/1.1 in chunks may be excused, see
// [SlowBodyQuota].
func WithMinBodyRate(idle time.Duration, least int) ServerOption {
	return serverOption(func(o *serverOptions) { o.bodyIdle, o.bodyRate = max(idle, 0), max(least, 0) })
}

// WithWriteTimeout is how long a client's connection may take no byte of what is sent by
// it; then it is closed. It may be up to half as long again. Tunnels have no such
// limit, and neither has a stream of HTTP/2 for which the client opens no window: it
// is one of those that a connection may have. The default is 5 minutes, so that who pauses a download for a while
// still gets it; a d of 0 or less sets no limit.
func WithWriteTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.writeStall = max(d, 0) })
}

// WithMaxStreamResets bounds the streams of an HTTP/2 connection that end by a reset,
// of either side: n at once, and n a second; a response that begins, after any 1xx,
// makes up for one. Calls that a client gives up after 250 ms or more, as when a
// deadline is over, do not count. A client beyond that is told ENHANCE_YOUR_CALM, and cut: it
// would have requests sent upstream for nothing (CVE-2023-44487, CVE-2025-8671).
// Before that its connection is not read for 20 ms at each quarter of n; and for a
// second, once, if another of the same address was cut in the last minute.
// The default is the number of streams; an n of 0 or less means that too.
func WithMaxStreamResets(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.takenBack = n })
}

// WithHTTP2Config sets the parameters of HTTP/2. Where a field of cfg is zero, its default
// is that of linkerd's proxy, or what says [http.HTTP2Config]:
//
//	MaxConcurrentStreams           100
//	MaxReceiveBufferPerStream      65 535
//	MaxReceiveBufferPerConnection  1 048 576
//	MaxReadFrameSize               16 384
//	SendPingTimeout                0, no keep-alive pings
//	WriteByteTimeout               as WithWriteTimeout
func WithHTTP2Config(cfg http.HTTP2Config) ServerOption {
	return serverOption(func(o *serverOptions) { o.http2 = cfg })
}

// WithGuard replaces the [Guard] of HTTP/1.1 connections, which is a new one with
// [WithHostMismatch], by one that counts or logs. With nil there is none: only for
// servers that forward nothing.
func WithGuard(g *Guard) ServerOption {
	return serverOption(func(o *serverOptions) { o.guard = g })
}

// WithServerLogger is where net/http says at level Debug what went wrong with a
// connection, and what panicked. The default, and nil, is nowhere.
func WithServerLogger(l *slog.Logger) ServerOption {
	return serverOption(func(o *serverOptions) { o.log = l })
}

const (
	defaultPatience      = time.Second
	defaultMaxHeader     = 32 << 10
	defaultHeaderTimeout = 5 * time.Second
	defaultBodyIdle      = 10 * time.Second
	defaultBodyRate      = 240
	defaultWriteStall    = 5 * time.Minute
	defaultStreams       = 100
	defaultStreamWindow  = 1<<16 - 1
	defaultConnWindow    = 1 << 20
	defaultFrameSize     = 16 << 10
)

func newServerOptions(opts []ServerOption) serverOptions {
	o := serverOptions{
		patience: defaultPatience, headerTimeout: defaultHeaderTimeout, bodyIdle: defaultBodyIdle, bodyRate: defaultBodyRate,
		writeStall: defaultWriteStall, guard: NewGuard(WithHostMismatch()),
	}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.maxHeader <= 0 {
		o.maxHeader = defaultMaxHeader
	}
	o.log = limitedLog(o.log)
	orElse(&o.http2.MaxConcurrentStreams, defaultStreams)
	orElse(&o.http2.MaxReceiveBufferPerStream, defaultStreamWindow)
	orElse(&o.http2.MaxReceiveBufferPerConnection, defaultConnWindow)
	orElse(&o.http2.MaxReadFrameSize, defaultFrameSize)
	orElse(&o.http2.WriteByteTimeout, o.writeStall)
	orElse(&o.takenBack, o.http2.MaxConcurrentStreams)
	return o
}

func orElse[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}

func h1Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

func h2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func (s *Server) httpServer(p *http.Protocols) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(s.serveHTTP), Protocols: p, HTTP2: &s.http2,
		MaxHeaderBytes: s.maxHeader, ReadHeaderTimeout: s.headerTimeout, IdleTimeout: s.keepAlive,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:                  contextOf,
	}
}
