package grpclayer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/dns"
)

// ControlPlaneConn is a connection to a control plane, that is, to the API of a controller. The
// API may be served at several addresses, restart, and move while it is used. A ControlPlaneConn
// is a [grpc.ClientConnInterface] and safe for concurrent use. Its layers, from the outside in,
// are:
//
//	origin       sets the authority of each call to Addr
//	drain        rejects calls after Close
//	metrics      of calls
//	queue        up to 1000 calls and streams wait up to 30 s for a connection
//	balance      over the addresses in DNS: EWMA, first estimate 30 ms, decay 10 s
//	└ reconnect  connects each address at once, and again when a call finds the
//	             connection lost; 100 ms to 60 s between attempts
//	  └ grpc     connect timeout 1 s: TCP with keep-alive, TLS, HTTP/2
//
// Calls wait only in the queue, and grpc.WaitForReady makes no difference. If no address is
// connected for as long as FailFast, all waiting calls fail with DEADLINE_EXCEEDED and the last
// reason. New calls then fail with UNAVAILABLE until an address is connected.
//
// If DNS fails, the last addresses remain. If DNS next answers without an address, they remain
// for another 30 s (see [resolve.ServeStale]).
type ControlPlaneConn struct {
	cfg    ControlPlaneConfig
	client *Client            // makes calls through svc
	svc    Service            // the layers for all calls, above the balancer
	leaf   Service            // sends calls on the connection of the link in their context
	drain  *layer.Drainer     // rejects new calls after Close
	cancel context.CancelFunc // ends the balancer and the connections
	links  controlLinks
}

var _ grpc.ClientConnInterface = (*ControlPlaneConn)(nil)

// NewControlPlaneConn returns a connection to cfg.Addr. It starts to resolve the address
// and to connect, but does not wait. The connection is closed when ctx ends, or by
// [ControlPlaneConn.Close]. NewControlPlaneConn returns an error if cfg is invalid.
func NewControlPlaneConn(ctx context.Context, cfg ControlPlaneConfig) (*ControlPlaneConn, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, fmt.Errorf("grpclayer: control: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &ControlPlaneConn{cfg: cfg, leaf: leaf(), drain: layer.NewDrainer(), cancel: cancel}
	c.svc = NewStack().WithTarget(cfg.Addr).WithMetrics(cfg.Instruments).
		Drain(c.drain).
		Metrics(cfg.Instruments).
		Queue(cfg.QueueCapacity, cfg.FailFast).
		Service(balance.Resolve(ctx, controlResolver(cfg.Resolver), balance.Config{Target: cfg.Addr, Metrics: cfg.Balancer}, c.endpoint,
			balance.WithCompletion(Completion), balance.WithClassifier(Classify[*Reply])))
	c.client = &Client{svc: c.svc}
	return c, nil
}

// endpoint returns the service for the address in t. It connects at the first call of Ready,
// which the balancer makes.
func (c *ControlPlaneConn) endpoint(ctx context.Context, t discover.Target) Service {
	// Reconnect gets a function that makes one connection; it calls it again after a backoff.
	addr := t.Endpoint.Addr.String()
	connect := func(ctx context.Context) (Service, error) { return c.connect(ctx, addr) }
	return layer.Reconnect(ctx, connect, c.cfg.Backoff,
		layer.WithTarget[*Reply](addr), layer.WithMetrics[*Reply](c.cfg.Instruments))
}

// Invoke makes a unary call. It implements [grpc.ClientConnInterface].
func (c *ControlPlaneConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.client.Unary(ctx, method, args, reply, nil, invokeOnLink, atOnce(opts)...)
}

// NewStream opens a stream. The stream ends when RecvMsg returns an error, when its only response
// has arrived, or when ctx ends; [Completion] lists all cases. NewStream implements
// [grpc.ClientConnInterface].
func (c *ControlPlaneConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.client.Stream(ctx, desc, nil, method, streamOnLink, atOnce(opts)...)
}

// atOnce returns opts and an option that disables gRPC's own wait for a connection, because
// the queue waits.
func atOnce(opts []grpc.CallOption) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.WaitForReady(false))
}

// Close rejects new calls and waits until the open ones have ended. If ctx ends first, Close ends
// the open calls, and returns an error that tells how many there were. Streams that watch a
// resource do not end by themselves: you should end them before, or pass a ctx that has already
// ended. When Close returns, all connections are closed.
func (c *ControlPlaneConn) Close(ctx context.Context) error {
	// Drain must reject new calls before the connections are closed.
	err := c.drain.Drain(ctx)
	c.cancel()
	c.links.close()
	return err
}

// Describe returns the layers in the order in which a call passes them, with the state of
// each address.
func (c *ControlPlaneConn) Describe() layer.Node {
	next := layer.Describe(c.svc)
	state := layer.State{{Key: "authority", Value: c.cfg.Addr}, {Key: "tls", Value: "none"}}
	if c.cfg.TLS != nil {
		state[1].Value = c.cfg.TLS.ServerName
	}
	return layer.Node{Name: "origin", State: state, Next: &next}
}

// ControlPlaneConfig configures [NewControlPlaneConn]. Only Addr is required. The defaults
// are those of linkerd's outbound proxy.
type ControlPlaneConfig struct {
	// Addr is "host:port". The host is looked up by SRV records, then by A and AAAA records. The
	// default Resolver sends no DNS query for an IP address or localhost. Addr is also every
	// call's authority.
	Addr string

	// TLS configures TLS. nil means cleartext. ServerName defaults to the host in Addr, without a
	// dot at its end, and NextProtos to "h2". A server without ALPN is accepted, because proxies
	// in front of controllers may not support ALPN.
	TLS *tls.Config

	// ConnectTimeout limits the time to connect by TCP, TLS and HTTP/2 together. 0 or less
	// means 1 s. linkerd's proxy uses 300 ms for controllers on the loopback interface.
	ConnectTimeout time.Duration

	// KeepAlive is the idle time before the first TCP keep-alive probe, and the interval
	// between probes. The connection is closed if three probes get no answer. On Linux it is
	// also closed if sent data is not acknowledged for four times KeepAlive. 0 means 10 s. A
	// negative value disables both.
	KeepAlive time.Duration

	// Dial opens a TCP connection to an address. KeepAlive does not apply to this
	// connection. nil means a [net.Dialer] with the probes that KeepAlive specifies.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Backoff is the pause between two attempts to connect to one address. A zero field
	// means the value of that field in [layer.DefaultBackoff].
	Backoff layer.Backoff

	// QueueCapacity is the largest number of calls and streams that wait for a connection.
	// 0 means 1000. A negative value means that no call waits.
	QueueCapacity int

	// FailFast is the longest time for which a call or stream waits for a connection. 0
	// means 30 s. With a negative value, only the context of the call limits the wait.
	FailFast time.Duration

	// Resolver resolves the host of Addr. The default is [dns.New].
	Resolver resolve.Resolver

	// UserAgent is added before the user agent string of gRPC. "" adds nothing.
	UserAgent string

	// DialOptions are further options for each connection, such as message sizes and call
	// credentials. They override this package's options, so they must not include transport
	// credentials or a dialer.
	DialOptions []grpc.DialOption

	Instruments layer.Instruments   // for the calls, the queue, and the attempts to connect
	Balancer    balance.Instruments // for the balancer over the addresses
	Log         *slog.Logger        // logs failed and new connections; nil logs nothing
}

// checked returns c with the defaults in place of unset fields. It returns an error if a
// field is invalid.
func (c ControlPlaneConfig) checked() (ControlPlaneConfig, error) {
	if c.Addr == "" {
		return c, errors.New("empty Addr, must be host:port")
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return c, err
	}
	// Port 0 means any port to a listener, but is no address to connect to.
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return c, fmt.Errorf("address %q: port must be 1 to 65535", c.Addr)
	}
	if strings.TrimSuffix(host, ".") == "" {
		return c, fmt.Errorf("address %q: empty host", c.Addr)
	}
	// A name in a certificate has no final dot.
	c.TLS = controlTLSConfig(c.TLS, strings.TrimSuffix(host, "."))
	if err := backoff.Check(c.Backoff); err != nil {
		return c, err
	}
	c.Backoff = c.Backoff.OrDefault()
	// A negative timeout means the default, like 0.
	c.ConnectTimeout = max(c.ConnectTimeout, 0)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 10*time.Second)
	c.QueueCapacity = max(cmp.Or(c.QueueCapacity, 1000), 0)
	c.FailFast = max(cmp.Or(c.FailFast, 30*time.Second), 0)
	if c.Resolver == nil {
		c.Resolver = dns.New()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// controlTLSConfig returns a copy of cfg with the defaults for a connection to host. If cfg
// is nil, it returns nil.
func controlTLSConfig(cfg *tls.Config, host string) *tls.Config {
	if cfg == nil {
		return nil
	}
	// A copy, because the caller's configuration must not change.
	cfg = cfg.Clone()
	cfg.ServerName = cmp.Or(cfg.ServerName, host)
	// gRPC requires the protocol h2 to be negotiated.
	if cfg.NextProtos == nil {
		cfg.NextProtos = []string{"h2"}
	}
	return cfg
}

// controlResolver returns the resolver for a control plane's address, which uses r for the
// look-ups. As linkerd's proxy does, it looks up SRV records first, then addresses.
func controlResolver(r resolve.Resolver) resolve.Resolver {
	return resolve.ServeStale(resolve.Fallback(services(r), r), resolve.StalePolicy{})
}

// services returns a resolver that uses r to look up a host's SRV records, which specify the
// ports. If there are only other records, or the first look-up fails, it reports that the target
// does not exist. resolve.Fallback then uses its next resolver.
func services(r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		host, _, _ := net.SplitHostPort(target)
		return func(yield func(resolve.Update, error) bool) {
			found := false
			for u, err := range r.Resolve(ctx, host) {
				switch {
				// Fallback asks for addresses only if the target does not exist. ErrUnresolvable needs no change, because
				// Fallback takes it for an absent target too.
				case err != nil && !found && !errors.Is(err, resolve.ErrUnresolvable):
					u, err = resolve.Update{Kind: resolve.DoesNotExist}, nil
				case err == nil && u.Kind == resolve.Empty:
					u.Kind = resolve.DoesNotExist
				case err == nil && len(u.Endpoints) > 0:
					found = true
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

// linkKey is the context key for the *controlLink that sends a call.
type linkKey struct{}

// errNoLink is the error of a call that did not come through this package's balancer.
var errNoLink = status.Error(codes.Internal, "grpclayer: the call has no connection")

// invokeOnLink is the invoker of unary calls: it sends the call on the connection that the balancer has
// chosen, which is in ctx. The nil ClientConn is not used.
func invokeOnLink(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return errNoLink
	}
	// The call runs on the connection of the link, whatever ClientConn the interceptor was given.
	err := l.cc.Invoke(ctx, method, req, reply, opts...)
	l.rejectIfLost(ctx, err)
	return err
}

// streamOnLink is the streamer of streams: it opens the stream on the connection that the balancer has
// chosen, which is in ctx. The nil ClientConn is not used.
func streamOnLink(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return nil, errNoLink
	}
	s, err := l.cc.NewStream(ctx, desc, method, opts...)
	// If the connection was lost, the balancer must learn that.
	l.rejectIfLost(ctx, err)
	return s, err
}

// rejectIfLost marks a call's attempt as rejected if err, the call's error, is UNAVAILABLE, nothing was
// sent, and the connection is lost. The layers then send the call on another connection. Any state
// except Ready means that it is lost, because a controlLink connects only once. In the state Ready, err
// is due to something else, such as missing credentials.
func (l *controlLink) rejectIfLost(ctx context.Context, err error) {
	if a := attemptOf(ctx); a != nil && status.Code(err) == codes.Unavailable && !a.sent.Load() &&
		l.cc.GetState() != connectivity.Ready {
		a.rejection.Store(&pickError{l.lost})
	}
}

// sentRecorder is a stats.Handler of gRPC that marks a call's attempt as sent once its header is sent.
// Before that, the call may safely be sent on another connection.
type sentRecorder struct{}

// TagRPC, TagConn and HandleConn do nothing. The interface of gRPC requires them.
func (sentRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sentRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentRecorder) HandleConn(context.Context, stats.ConnStats)                       {}

// HandleRPC marks the attempt when gRPC reports that the call's header was sent.
func (sentRecorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if a := attemptOf(ctx); a != nil {
		a.sent.Store(true)
	}
}

// controlTLS holds the TLS credentials for one connection. It replaces gRPC's own credentials,
// because they require ALPN, which proxies in front of a controller may not support, and because
// they require the authority to equal the name in the certificate.
type controlTLS struct {
	config *tls.Config
	until  time.Time   // the deadline for connecting
	failed func(error) // is called with the error of a failed handshake
}

// ClientHandshake makes the TLS handshake before the deadline for connecting.
func (t *controlTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// gRPC's own context may last longer than the time to connect.
	ctx, cancel := context.WithDeadline(ctx, t.until)
	defer cancel()
	conn := tls.Client(raw, t.config)
	// gRPC does not pass this error on, so the link keeps it.
	if err := conn.HandshakeContext(ctx); err != nil {
		t.failed(err)
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ServerHandshake returns an error, because the credentials are for clients only.
func (t *controlTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpclayer: these credentials are for clients")
}

// Info returns the protocol without a server name, so that gRPC allows any authority.
func (t *controlTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns a copy of the credentials.
func (t *controlTLS) Clone() credentials.TransportCredentials {
	other := *t
	return &other
}

// OverrideServerName does nothing, because gRPC does not call it.
func (t *controlTLS) OverrideServerName(string) error { return nil }
