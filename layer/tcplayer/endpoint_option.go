package tcplayer

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
	connectTimeout time.Duration
	backoff        layer.Backoff
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
	sockets        sockets
}

type endpointOption func(*endpointOptions)

func (f endpointOption) apply(o *endpointOptions) { f(o) }

// WithConnectTimeout bounds the making of a connection, TLS included. The default
// is 1 s, as in linkerd's proxy; a d of 0 or less means that too.
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
// socket, a network in memory, a proxy. The network is "tcp". It must return
// when ctx ends; the connection must not depend on ctx after that. A nil dial panics.
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("tcplayer: nil dial function")
	}
	return endpointOption(func(o *endpointOptions) { o.dial = dial })
}

// WithTLS makes an Endpoint connect by TLS. It takes a copy of cfg; nil means no
// TLS. A ServerName that is empty becomes the host of the address: give it that
// of resolve.ID where there is one.
func WithTLS(cfg *tls.Config) EndpointOption {
	return endpointOption(func(o *endpointOptions) { o.tls = cfg.Clone() })
}

const defaultConnectTimeout = time.Second

func newEndpointOptions(addr string, opts []EndpointOption) endpointOptions {
	o := endpointOptions{dial: new(net.Dialer).DialContext}
	for _, opt := range opts {
		if opt != nil {
			opt.apply(&o)
		}
	}
	if o.connectTimeout <= 0 {
		o.connectTimeout = defaultConnectTimeout
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
