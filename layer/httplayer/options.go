package httplayer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/option"
	"github.com/gotower/gotower/layer"
)

// EndpointOption is an option of [NewEndpoint]. "Connections" in the package documentation describes
// the default protocol.
type EndpointOption func(*endpointOptions)

// endpointOptions holds an Endpoint's settings. The options describe them.
type endpointOptions struct {
	protocol       protocol
	maxConns       int
	maxIdle        int // -1 means unlimited
	idleTimeout    time.Duration
	connectTimeout time.Duration
	maxAge         time.Duration
	backoff        layer.Backoff
	pingInterval   time.Duration
	pingTimeout    time.Duration
	pingWhileIdle  bool // an HTTP/2 connection without streams is pinged too
	dial           func(ctx context.Context, network, addr string) (net.Conn, error)
	tls            *tls.Config
	cleartextHTTPS bool // requests with the scheme https may be sent without TLS
}

// protocol tells which version of HTTP an Endpoint uses.
type protocol int

const (
	auto       protocol = iota // depends on the request and the connection
	asReceived                 // the version over which the request was received
	http1
	http2
)

// String returns the name of p, which is also the name in ALPN for http1 and http2.
func (p protocol) String() string {
	return [...]string{"auto", "as received", "http/1.1", "h2"}[p]
}

// isFixed reports whether all requests use the same version of HTTP.
func (p protocol) isFixed() bool { return p == http1 || p == http2 }

// WithKeepVersion makes an Endpoint send a request over HTTP/2 if it was received over HTTP/2
// (ProtoMajor is 2 or more), even in cleartext. It sends all other requests over HTTP/1.1.
// Use it in a proxy if clients choose a version that the server supports.
func WithKeepVersion() EndpointOption {
	return func(o *endpointOptions) { o.protocol = asReceived }
}

// WithHTTP1 makes an Endpoint send every request over HTTP/1.1.
func WithHTTP1() EndpointOption {
	return func(o *endpointOptions) { o.protocol = http1 }
}

// WithHTTP2 makes an Endpoint send every request over HTTP/2 with prior knowledge. CONNECT
// and upgrade requests still use HTTP/1.1.
func WithHTTP2() EndpointOption {
	return func(o *endpointOptions) { o.protocol = http2 }
}

// WithMaxConns limits the HTTP/1.1 connections of an Endpoint, including upgraded
// connections and those being dialed. If n connections are in use, Call rejects a request
// that needs another one. The default, and any n below 1, means unlimited. HTTP/2 uses one
// connection.
func WithMaxConns(n int) EndpointOption {
	return func(o *endpointOptions) { o.maxConns = n }
}

// WithMaxIdleConns limits the idle HTTP/1.1 connections of an Endpoint. With 0 each
// connection serves one request. The default, and any n below 0, means unlimited.
func WithMaxIdleConns(n int) EndpointOption {
	return func(o *endpointOptions) { o.maxIdle = n }
}

// WithIdleTimeout sets how long an idle HTTP/1.1 connection is kept. The default is 3 s, as
// in linkerd's proxy. A d of 0 or less selects the default. HTTP/2 connections are kept
// until they end.
func WithIdleTimeout(d time.Duration) EndpointOption {
	return func(o *endpointOptions) { o.idleTimeout = d }
}

// WithMaxConnAge sets the age at which a connection is replaced; see "Connections" in the package
// documentation. Each connection's limit varies by up to a tenth of d, so that connections are
// not replaced at the same time. A d below a second counts as a second.
//
// The default, and a d of 0 or less, means no limit, because an address usually belongs to one
// process. You should set a limit, such as 5 minutes, if the address belongs to a Kubernetes
// Service or a load balancer. Otherwise, an HTTP/2 connection would never move to a process that
// started later.
func WithMaxConnAge(d time.Duration) EndpointOption {
	return func(o *endpointOptions) { o.maxAge = d }
}

// WithPing enables PING frames on HTTP/2 connections. The Endpoint sends a PING if requests are in
// flight or output is unsent, and the server sent nothing for interval. If the server then sends
// nothing for timeout, the connection is closed and its requests fail. This detects a server that
// no longer responds, at most interval plus timeout after a request was sent. The default, and an
// interval of 0 or less, disables PING frames. A timeout of 0 or less means 20 s. Note that grpc-go
// servers close connections with frequent PINGs.
func WithPing(interval, timeout time.Duration) EndpointOption {
	return func(o *endpointOptions) {
		o.pingInterval, o.pingTimeout = max(interval, 0), max(timeout, 0)
	}
}

// WithPingWhileIdle makes an Endpoint with [WithPing] also send PING frames while no requests are
// in flight, so that the next request does not find a broken connection.
func WithPingWhileIdle() EndpointOption {
	return func(o *endpointOptions) { o.pingWhileIdle = true }
}

// WithConnectTimeout limits the time to connect: TCP, TLS and, for HTTP/2, the server's SETTINGS.
// The default is 1 s, as in linkerd's proxy. A d of 0 or less selects the default.
func WithConnectTimeout(d time.Duration) EndpointOption {
	return func(o *endpointOptions) { o.connectTimeout = d }
}

// WithBackoff sets the backoff between attempts to connect to an address that cannot be reached.
// The default is 100 ms to 1 s with a jitter of 10 %. If b is not zero, a Min or Max of 0 is
// taken from [layer.DefaultBackoff], and a Jitter of 0 means no jitter. Invalid values panic.
//
// A request during the backoff makes no attempt of its own, as in linkerd's proxy and in grpc-go, whose
// backoffs grow to one and to two minutes. Requests may therefore be rejected for up to 1 s after the
// address can be reached again, unless they wait in a Queue.
func WithBackoff(b layer.Backoff) EndpointOption {
	if err := backoff.Check(b); err != nil {
		panic("httplayer: WithBackoff: " + err.Error())
	}
	return func(o *endpointOptions) { o.backoff = b }
}

// WithDialContext replaces the function that makes the TCP connection, for example by one for
// Unix sockets. The function dial receives the network "tcp" and the Endpoint's address. The
// default is the DialContext of a zero [net.Dialer]. A nil dial panics.
func WithDialContext(dial func(ctx context.Context, network, addr string) (net.Conn, error)) EndpointOption {
	if dial == nil {
		panic("httplayer: nil dial function")
	}
	return func(o *endpointOptions) { o.dial = dial }
}

// WithTLS makes an Endpoint use TLS with a copy of cfg. A nil cfg means crypto/tls's default
// configuration. An empty ServerName is replaced with the host in the address. The Endpoint sets
// NextProtos. A connection fails if its handshake does not select the request's protocol. After
// such a failure for HTTP/2, requests other than gRPC use HTTP/1.1, unless [WithHTTP2] is set.
//
// Without this option connections are cleartext, and requests with an https URL fail; see
// [WithCleartextHTTPS].
func WithTLS(cfg *tls.Config) EndpointOption {
	return func(o *endpointOptions) {
		if o.tls = cfg.Clone(); cfg == nil {
			o.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
}

// WithCleartextHTTPS makes an Endpoint without [WithTLS] send requests with an https URL.
// By default they fail with a [StatusError] of 421, because their content would be sent in
// cleartext. Use it with a dial function that adds TLS (see [WithDialContext]), and in
// a proxy that sends such requests in cleartext on purpose, for example because the clients' TLS
// ends at the proxy.
func WithCleartextHTTPS() EndpointOption {
	return func(o *endpointOptions) { o.cleartextHTTPS = true }
}

// newEndpointOptions returns the options in opts, with defaults for what they leave out. addr provides
// the default TLS server name.
func newEndpointOptions(addr string, opts []EndpointOption) endpointOptions {
	o := endpointOptions{dial: new(net.Dialer).DialContext, maxIdle: -1}
	option.Apply(&o, opts)
	orElse(&o.idleTimeout, 3*time.Second)
	orElse(&o.connectTimeout, time.Second)
	// A shorter age would replace connections all the time.
	if o.maxAge > 0 {
		o.maxAge = max(o.maxAge, time.Second)
	}
	if o.backoff == (layer.Backoff{}) {
		o.backoff = backoff.Connect()
	}
	o.backoff = o.backoff.OrDefault()
	// Like net/http, verify the certificate against the host of the address.
	if o.tls != nil && o.tls.ServerName == "" {
		o.tls.ServerName = addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			o.tls.ServerName = host
		}
	}
	return o
}
