package httplayer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/gotower/gotower/layer"
)

// EndpointOption sets how an [Endpoint] connects.
type EndpointOption interface{ apply(o *endpointOptions) }

type endpointOptions struct {
	protocol       protocol
	maxConns       int
	idleTimeout    time.Duration
	connectTimeout time.Duration
	backoff        layer.Backoff
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
}

type endpointOption func(*endpointOptions)

func (f endpointOption) apply(o *endpointOptions) { f(o) }

type protocol int

const (
	auto protocol = iota // as the request came
	http1
	http2
)

func (p protocol) String() string {
	return [...]string{"auto", "http/1.1", "h2"}[p]
}

// H1 makes an Endpoint send every request by HTTP/1.1. The default is to send
// a request by HTTP/2 if that is how it came (ProtoMajor is 2 or more), and
// else by HTTP/1.1.
func H1() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http1 })
}

// H2 makes an Endpoint send every request by HTTP/2, with prior knowledge. A
// request to upgrade the connection still goes by HTTP/1.1: HTTP/2 has no
// such thing.
func H2() EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.protocol = http2 })
}

// MaxConns bounds the HTTP/1.1 connections of an Endpoint, those being dialled
// and those upgraded included; at n the next request is refused. The default,
// and any n below 1, means no bound. HTTP/2 has its own: one connection, and
// as many streams as the server allows.
func MaxConns(n int) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.maxConns = n })
}

// IdleTimeout is how long an HTTP/1.1 connection is kept for the next request.
// The default is 3 s, as in linkerd's proxy; a d of 0 or less means that too.
// An HTTP/2 connection is kept for as long as it works.
func IdleTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.idleTimeout = d })
}

// ConnectTimeout bounds the making of a connection: TCP, TLS, and the server's
// SETTINGS in HTTP/2. The default is 1 s, as in linkerd's proxy; a d of 0 or
// less means that too.
func ConnectTimeout(d time.Duration) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.connectTimeout = d })
}

// Backoff is how long an Endpoint leaves an address alone that could not be
// reached. The default is [layer.DefaultBackoff]. A value that makes no sense
// is corrected, see OrDefault there.
func Backoff(b layer.Backoff) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.backoff = b })
}

// DialContext replaces the dialler, that of a zero [net.Dialer]: for a Unix
// socket, or a network in memory. The network is "tcp".
func DialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// TLS makes an Endpoint connect by TLS. It takes a copy of cfg. A ServerName
// that is empty becomes the host of the address; NextProtos are set here. The
// server must agree to the protocol that the request asks for.
func TLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.tls = cfg.Clone() })
}

const (
	defaultIdleTimeout    = 3 * time.Second
	defaultConnectTimeout = time.Second
)

func newEndpointOptions(addr string, opts []EndpointOption) endpointOptions {
	o := endpointOptions{dial: new(net.Dialer).DialContext}
	for _, opt := range opts {
		opt.apply(&o)
	}
	if o.idleTimeout <= 0 {
		o.idleTimeout = defaultIdleTimeout
	}
	if o.connectTimeout <= 0 {
		o.connectTimeout = defaultConnectTimeout
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
