package httplayer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// EndpointOption configures an [Endpoint].
type EndpointOption interface{ apply(o *endpointOptions) }

type endpointOptions struct {
	protocol       protocol
	maxConns       int
	maxIdle        int // -1 is unlimited
	idleTimeout    time.Duration
	connectTimeout time.Duration
	maxAge         time.Duration
	grace          time.Duration
	backoff        layer.Backoff
	pingInterval   time.Duration
	pingTimeout    time.Duration
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
	cleartextHTTPS bool
}

type endpointOption func(*endpointOptions)

func (f endpointOption) apply(o *endpointOptions) { f(o) }

type protocol int

const (
	auto       protocol = iota // chosen by request and connection
	asReceived                 // the version in which the request was received
	http1
	http2
)

func (p protocol) String() string {
	return [...]string{"auto", "as received", "http/1.1", "h2"}[p]
}

// isFixed reports whether all requests use one version of HTTP.
func (p protocol) isFixed() bool { return p == http1 || p == http2 }

// KeepVersion makes an Endpoint send a request by HTTP/2 if it was received by
// HTTP/2 (ProtoMajor is 2 or more), also in cleartext, and else by HTTP/1.1. It
// is for proxies whose clients chose the version that the server speaks.
func KeepVersion() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = asReceived })
}

// WithHTTP1 makes an Endpoint send every request by HTTP/1.1. For the default, see
// "Protocol" at [Endpoint].
func WithHTTP1() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http1 })
}

// WithHTTP2 makes an Endpoint send every request by HTTP/2 with prior
// knowledge. A request to upgrade the connection still goes by HTTP/1.1,
// because HTTP/2 has no upgrade.
func WithHTTP2() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http2 })
}

// WithMaxConns limits the HTTP/1.1 connections of an Endpoint, including those
// being dialed and upgraded ones. A request beyond n is rejected. A successor
// of an old connection (see [WithMaxConnAge]) is not counted. The default, and
// any n below 1, is unlimited. HTTP/2 uses one connection with as many streams
// as the server allows.
func WithMaxConns(n int) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxConns = n })
}

// WithMaxIdleConns limits the idle HTTP/1.1 connections of an Endpoint. With 0
// each connection serves one request. The default, and any n below 0, is
// unlimited.
func WithMaxIdleConns(n int) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxIdle = n })
}

// WithIdleTimeout sets how long an idle HTTP/1.1 connection is kept. The
// default, also for d <= 0, is 3 s as in linkerd's proxy. HTTP/2 connections
// are kept until they fail.
func WithIdleTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.idleTimeout = d })
}

// WithMaxConnAge sets the age at which a connection is replaced; see "Age" at
// [Endpoint]. Each connection draws a limit within a tenth of d, as gRPC's
// MAX_CONNECTION_AGE does, so that connections made together are not replaced
// together. A d below a second counts as a second.
//
// The default, and d <= 0, means no limit, because an address usually stands for
// one process. Set it where an address stands for many, such as a Kubernetes
// Service or a load balancer. There an HTTP/2 connection would never reach
// processes started later. Start with 5 minutes: new processes get their share
// in about that time.
func WithMaxConnAge(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxAge = d })
}

// WithMaxConnAgeGrace sets how long an HTTP/2 connection keeps its open streams
// after its successor took over. After that it is closed and its streams fail.
// The default, and d <= 0, means no limit. It has no effect without
// [WithMaxConnAge].
func WithMaxConnAgeGrace(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.grace = d })
}

// WithPing sends a PING on an HTTP/2 connection that received nothing for
// interval, with or without open requests. Without an answer within timeout,
// the connection is closed and its requests fail. A server that froze is thus
// detected within interval plus timeout. The default, and interval <= 0, is no
// PING; timeout <= 0 is 15 s. grpc-go servers close connections with frequent
// PINGs.
func WithPing(interval, timeout time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) {
		o.pingInterval, o.pingTimeout = max(interval, 0), max(timeout, 0)
	})
}

// WithConnectTimeout limits the time to connect: TCP, TLS, and for HTTP/2 the
// server's SETTINGS. The default, also for d <= 0, is 1 s as in linkerd's
// proxy.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// WithBackoff sets the pauses between attempts to connect to an unreachable
// address. The default is 100 ms to 1 s with a tenth of jitter. Zero fields
// have the defaults of [layer.DefaultBackoff]; invalid values panic.
func WithBackoff(b layer.Backoff) EndpointOption {
	if err := backoff.Check(b); err != nil {
		panic("httplayer: WithBackoff: " + err.Error())
	}
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// WithDialContext replaces the dialer, which is a zero [net.Dialer], for
// example for Unix sockets. The network is "tcp".
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("httplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes an Endpoint connect by TLS with a copy of cfg; nil is the
// default configuration of crypto/tls. An empty ServerName becomes the host of
// the address, and NextProtos are set here. The server must agree to the
// protocol of the request; only without [WithHTTP1] and [WithHTTP2] may HTTP/2
// fall back to HTTP/1.1, see [Endpoint].
//
// Without this option connections are cleartext, and requests whose URL is
// https are rejected, see [WithCleartextHTTPS].
func WithTLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) {
		if o.tls = cfg.Clone(); cfg == nil {
			o.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	})
}

// WithCleartextHTTPS makes an Endpoint without [WithTLS] send requests whose
// URL is https. By default it rejects them with a [StatusError] of 421, because
// their content would be sent in cleartext. It is for dialers that add TLS
// themselves (see [WithDialContext]) and for proxies that forward absolute
// targets.
func WithCleartextHTTPS() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.cleartextHTTPS = true })
}

const (
	defaultIdleTimeout    = 3 * time.Second
	defaultConnectTimeout = time.Second
	leastMaxAge           = time.Second
)

func newEndpointOptions(addr string, opts []EndpointOption) endpointOptions {
	o := endpointOptions{dial: new(net.Dialer).DialContext, maxIdle: -1}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.idleTimeout <= 0 {
		o.idleTimeout = defaultIdleTimeout
	}
	if o.connectTimeout <= 0 {
		o.connectTimeout = defaultConnectTimeout
	}
	if o.maxAge > 0 {
		o.maxAge = max(o.maxAge, leastMaxAge)
	}
	if o.backoff == (layer.Backoff{}) {
		o.backoff = backoff.Connect()
	}
	o.backoff = o.backoff.OrDefault()
	if o.tls != nil && o.tls.ServerName == "" {
		o.tls.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			o.tls.ServerName = host
		}
	}
	return o
}
