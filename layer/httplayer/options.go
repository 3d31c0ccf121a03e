package httplayer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
)

// EndpointOption sets how an [Endpoint] connects.
type EndpointOption interface{ apply(o *endpointOptions) }

type endpointOptions struct {
	protocol       protocol
	maxConns       int
	maxIdle        int // below 0: no bound
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
	auto       protocol = iota // by what the request and the connection say
	asReceived                 // as the request came
	http1
	http2
)

func (p protocol) String() string {
	return [...]string{"auto", "as received", "http/1.1", "h2"}[p]
}

// isFixed reports whether the server is taken to speak one version of HTTP only.
func (p protocol) isFixed() bool { return p == http1 || p == http2 }

// KeepVersion makes an Endpoint send a request by HTTP/2 if it came by HTTP/2
// (ProtoMajor is 2 or more), in cleartext too, and by HTTP/1.1 otherwise. It is
// for proxies whose clients chose the version that the server speaks.
func KeepVersion() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = asReceived })
}

// WithHTTP1 makes an Endpoint send every request by HTTP/1.1. For the default, see
// "Protocol" at [Endpoint].
func WithHTTP1() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http1 })
}

// WithHTTP2 makes an Endpoint send every request by HTTP/2, with prior knowledge. A
// request to upgrade the connection still goes by HTTP/1.1: HTTP/2 has no
// such thing.
func WithHTTP2() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http2 })
}

// WithMaxConns bounds the HTTP/1.1 connections of an Endpoint, those being dialled
// and those upgraded included; at n the next request is refused. Beside them
// there may be the one that is to take the place of another, see [WithMaxConnAge];
// requests are n at the most all the same. The default, and any n below 1,
// means no bound. HTTP/2 has its own: one connection, and
// as many streams as the server allows.
func WithMaxConns(n int) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxConns = n })
}

// WithMaxIdleConns bounds the HTTP/1.1 connections that an Endpoint keeps for the
// next request: one that is n+1 is closed. With 0 each is for one request. The
// default, and any n below 0, means no bound.
func WithMaxIdleConns(n int) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxIdle = n })
}

// WithIdleTimeout is how long an HTTP/1.1 connection is kept for the next request.
// The default is 3 s, as in linkerd's proxy; a d of 0 or less means that too.
// An HTTP/2 connection is kept for as long as it works.
func WithIdleTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.idleTimeout = d })
}

// WithMaxConnAge is how old a connection may become before a new one takes its
// place; see "Age" at [Endpoint]. Each connection draws its own limit, from a
// tenth below d to a tenth above, as gRPC's MAX_CONNECTION_AGE does, so that
// those which were made together do not end together.
//
// The default, and a d of 0 or less, is no limit, as in linkerd's proxy: where
// an address stands for one process, or somebody tells of new ones, a new
// connection leads to where the old one did, for the price of a handshake.
// Give one where an address stands for many, as that of a Kubernetes Service or
// a load balancer does: an HTTP/2 connection stays with the process that it was
// given, whatever others come up. Start from 5 minutes: they have their share
// within about that time. A d below a second counts as a second.
func WithMaxConnAge(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxAge = d })
}

// WithMaxConnAgeGrace is how long an HTTP/2 connection that was too old may go on
// with the streams that it has when its successor took its place. After that it
// is closed, and what is still open on it fails as on a connection that was
// lost. The default, and a d of 0 or less, is for as long as they take: without
// this option no request ever fails for the age of a connection. Without
// [WithMaxConnAge] it means nothing.
func WithMaxConnAgeGrace(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.grace = d })
}

// WithPing sends a PING on an HTTP/2 connection after an interval in which nothing
// was received, whether requests are open or not. The connection is closed if the
// answer takes longer than timeout, and its requests fail. So a server that is gone
// or frozen is noticed within interval plus timeout. The default, and an interval of
// 0 or less, is no PING; a timeout of 0 or less means 15 s. Servers of grpc-go close
// connections with frequent PINGs.
func WithPing(interval, timeout time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) {
		o.pingInterval, o.pingTimeout = max(interval, 0), max(timeout, 0)
	})
}

// WithConnectTimeout bounds the making of a connection: TCP, TLS, and the server's
// SETTINGS in HTTP/2. The default is 1 s, as in linkerd's proxy; a d of 0 or
// less means that too.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// WithBackoff is how long an Endpoint leaves an address alone that could not be
// reached. The default is 100 ms to 1 s with a tenth of jitter. Another value
// that makes no sense is corrected, see OrDefault there.
func WithBackoff(b layer.Backoff) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// WithDialContext replaces the dialler, that of a zero [net.Dialer]: for a Unix
// socket, or a network in memory. The network is "tcp".
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("httplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes an Endpoint connect by TLS. It takes a copy of cfg. A ServerName
// that is empty becomes the host of the address; NextProtos are set here. The
// server must agree to the protocol that the request asks for; with neither [WithHTTP1]
// nor [WithHTTP2], a request by HTTP/2 to a server that does not goes by HTTP/1.1, see
// [Endpoint].
//
// A nil cfg is the default configuration of crypto/tls. Without this option
// connections are cleartext, and a request whose URL is https is rejected, see
// [WithCleartextHTTPS].
func WithTLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) {
		if o.tls = cfg.Clone(); cfg == nil {
			o.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	})
}

// WithCleartextHTTPS makes an Endpoint without [WithTLS] send requests whose URL is https.
// By default it rejects them with a [StatusError] of 421, because their headers
// and bodies would be on the wire in cleartext. It is for a dialler that adds TLS
// itself (see [WithDialContext]), and for proxies that forward absolute targets.
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
