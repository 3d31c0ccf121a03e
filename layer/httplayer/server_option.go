package httplayer

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// ServerOption configures a [Server].
type ServerOption interface{ apply(o *serverOptions) }

type serverOption func(*serverOptions)

func (f serverOption) apply(o *serverOptions) { f(o) }

type serverOptions struct {
	drainOn       context.Context //nolint:containedctx // its end starts draining
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

// WithDrainOnDone starts draining when ctx ends. Use the ctx of tcplayer.Serve,
// which then closes the listener and lets the connections finish.
func WithDrainOnDone(ctx context.Context) ServerOption {
	return serverOption(func(o *serverOptions) { o.drainOn = ctx })
}

// WithDrainTimeout sets how long draining waits for an HTTP/2 client to
// acknowledge the GOAWAY, and for an idle HTTP/1.1 client to send a request
// whose response can say Connection: close. The default is 1 s. With d <= 0
// idle connections are closed at once and requests in transit are lost. New
// connections without a first byte get at least 100 ms.
func WithDrainTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.patience = max(d, 0) })
}

// WithMaxHeaderBytes limits the size of request headers; larger ones get 431.
// In HTTP/2 each field counts 32 bytes in addition. The default, also for n <=
// 0, is 32 KiB. net/http adds up to 4 KiB.
func WithMaxHeaderBytes(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.maxHeader = n })
}

// WithHeaderTimeout limits the time from the first byte of an HTTP/1.1 request
// to the end of its headers, and from accept to the first byte. The connection
// is then closed. The default is 5 s; d <= 0 means no limit. While draining, the
// first byte has at most [WithDrainTimeout].
func WithHeaderTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.headerTimeout = max(d, 0) })
}

// WithServerIdleTimeout limits the idle time of a connection between two
// requests. The default, and d <= 0, means no limit, as in linkerd's proxy.
func WithServerIdleTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.keepAlive = max(d, 0) })
}

// WithMinBodyRate limits how slowly a request body may arrive. A pause may not
// exceed idle, and after a first idle there must be least bytes per second.
// Only time in which the handler waits for the body counts. On violation
// reading fails with an error that matches [layer.ErrIdleTimeout] and is
// answered with 408. An unread rest of an HTTP/1.1 body has idle to arrive;
// then the connection is closed after the response. The default is 10 s and 240
// bytes; idle <= 0 means no limit, least <= 0 no rate.
//
// The limit does not apply to gRPC and to HTTP/2 bodies without a
// content-length, because a stream may be a conversation and streams are
// limited in number. For chunked HTTP/1.1 bodies see [SlowBodyQuota].
func WithMinBodyRate(idle time.Duration, least int) ServerOption {
	return serverOption(func(o *serverOptions) { o.bodyIdle, o.bodyRate = max(idle, 0), max(least, 0) })
}

// WithWriteTimeout closes a client's connection that accepts no byte for d, up
// to 1.5 d. Tunnels and HTTP/2 streams without flow-control window are exempt.
// The default is 5 minutes, which allows paused downloads; d <= 0 means no limit.
func WithWriteTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.writeStall = max(d, 0) })
}

// WithMaxStreamResets limits the streams of an HTTP/2 connection that end by a
// reset of either side: a token bucket of size n, refilled at n per second.
// Each final response returns one token. Streams open for 250 ms or longer are
// not counted. A connection over the limit gets GOAWAY(ENHANCE_YOUR_CALM) and
// is closed, because each canceled stream costs an upstream request
// (CVE-2023-44487, CVE-2025-8671). Reading pauses for 20 ms at each quarter of
// n, and once for a second if the address was over the limit in the last
// minute. The default, also for n <= 0, is the maximum number of concurrent
// streams.
func WithMaxStreamResets(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.takenBack = n })
}

// WithHTTP2Config sets the parameters of HTTP/2. A zero field has linkerd's
// default or else that of [http.HTTP2Config]:
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

// WithGuard replaces the [Guard] of HTTP/1.1 connections, for example by one
// that counts or logs. The default is a new one with [WithHostMismatch]. A nil
// g disables the check: only for servers that forward nothing.
func WithGuard(g *Guard) ServerOption {
	return serverOption(func(o *serverOptions) { o.guard = g })
}

// WithServerLogger sets the logger for connection errors and panics of
// net/http, at level Debug. The default, and nil, means no log.
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
