package httplayer

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

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
