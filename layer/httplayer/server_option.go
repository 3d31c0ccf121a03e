package httplayer

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// ServerOption configures a [Server].
type ServerOption interface{ apply(o *serverOptions) }

type serverOption func(*serverOptions)

func (f serverOption) apply(o *serverOptions) { f(o) }

type serverOptions struct {
	message.ServerConfig
	drainOn context.Context //nolint:containedctx // its end starts draining
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
	return serverOption(func(o *serverOptions) { o.DrainTimeout = max(d, 0) })
}

// WithMaxHeaderBytes limits the size of request headers; larger ones get 431.
// In HTTP/2 each field counts 32 bytes in addition. The default, also for n <=
// 0, is 32 KiB.
func WithMaxHeaderBytes(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxHeaderBytes = n })
}

// WithHeaderTimeout limits the time from the first byte of an HTTP/1.1 request
// to the end of its headers, and from accept to the first byte. The connection
// is then closed. The default is 5 s; d <= 0 means no limit. While draining, the
// first byte has at most [WithDrainTimeout].
func WithHeaderTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.HeaderTimeout = max(d, 0) })
}

// WithServerIdleTimeout limits the idle time of a connection between two
// requests. The default, and d <= 0, means no limit, as in linkerd's proxy.
func WithServerIdleTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.IdleTimeout = max(d, 0) })
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
// limited in number.
func WithMinBodyRate(idle time.Duration, least int) ServerOption {
	return serverOption(func(o *serverOptions) { o.BodyIdle, o.MinBodyRate = max(idle, 0), max(least, 0) })
}

// WithWriteTimeout closes a client's connection that accepts no byte for d, up
// to 1.5 d. Tunnels and HTTP/2 streams without flow-control window are exempt.
// The default is 5 minutes, which allows paused downloads; d <= 0 means no limit.
func WithWriteTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.WriteTimeout = max(d, 0) })
}

// WithMaxStreamResets limits the streams of an HTTP/2 connection that end by a
// reset of either side: a token bucket of size n, refilled at n per second.
// Each final response returns one token. Streams open for 250 ms or longer are
// not counted. A connection over the limit gets GOAWAY(ENHANCE_YOUR_CALM) and
// is closed, because each canceled stream costs an upstream request
// (CVE-2023-44487, CVE-2025-8671). The default, also for n <= 0, is the maximum
// number of concurrent streams.
func WithMaxStreamResets(n int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxStreamResets = n })
}

// WithHTTP2Config sets the parameters of HTTP/2. A zero field has linkerd's
// default; other fields are not used:
//
//	MaxConcurrentStreams           100
//	MaxReceiveBufferPerStream      65 535
//	MaxReceiveBufferPerConnection  1 048 576
//	MaxReadFrameSize               16 384, at most 61 440
//	SendPingTimeout                0, no keep-alive pings
//	PingTimeout                    15 s
func WithHTTP2Config(cfg http.HTTP2Config) ServerOption {
	return serverOption(func(o *serverOptions) {
		o.MaxStreams, o.MaxFrameSize = cfg.MaxConcurrentStreams, cfg.MaxReadFrameSize
		o.StreamWindow, o.ConnWindow = cfg.MaxReceiveBufferPerStream, cfg.MaxReceiveBufferPerConnection
		o.PingInterval, o.PingTimeout = cfg.SendPingTimeout, cfg.PingTimeout
	})
}

// WithServerLogger sets the logger for malformed requests, at level Debug, and
// for panics of handlers, at level Error. The default, and nil, means no log.
func WithServerLogger(l *slog.Logger) ServerOption {
	return serverOption(func(o *serverOptions) { o.Log = l })
}

const (
	defaultDrainTimeout  = time.Second
	defaultMaxHeader     = 32 << 10
	defaultHeaderTimeout = 5 * time.Second
	defaultBodyIdle      = 10 * time.Second
	defaultBodyRate      = 240
	defaultWriteTimeout  = 5 * time.Minute
	defaultStreams       = 100
	defaultStreamWindow  = 1<<16 - 1
	defaultConnWindow    = 1 << 20
	defaultFrameSize     = 16 << 10
	defaultPingTimeout   = 15 * time.Second
)

func newServerOptions(opts []ServerOption) serverOptions {
	o := serverOptions{ServerConfig: message.ServerConfig{
		DrainTimeout: defaultDrainTimeout, HeaderTimeout: defaultHeaderTimeout,
		BodyIdle: defaultBodyIdle, MinBodyRate: defaultBodyRate, WriteTimeout: defaultWriteTimeout,
	}}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	o.Log = limitedLog(o.Log)
	orElse(&o.MaxHeaderBytes, defaultMaxHeader)
	orElse(&o.MaxStreams, defaultStreams)
	orElse(&o.StreamWindow, defaultStreamWindow)
	orElse(&o.ConnWindow, defaultConnWindow)
	orElse(&o.MaxFrameSize, defaultFrameSize)
	orElse(&o.PingTimeout, defaultPingTimeout)
	orElse(&o.MaxStreamResets, o.MaxStreams)
	return o
}

func orElse[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
