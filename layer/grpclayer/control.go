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
	"net/netip"
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
	"github.com/gotower/gotower/resolve/static"
)

// ControlPlaneConn is a connection to a control plane: a controller's API,
// which may be served at several addresses, restart and move while it is used.
// It is a [grpc.ClientConnInterface], safe for concurrent use.
//
//	origin       the authority is Addr for all addresses
//	drain        rejects calls after Close
//	metrics      calls, as control_* counts them
//	queue        1000 calls and streams wait up to 30 s for a connection
//	balance      over the addresses in DNS: EWMA, 30 ms and 10 s
//	└ reconnect  connects each address at once, and again when a call finds it lost;
//	             100 ms to 60 s between attempts
//	  └ grpc     connect timeout 1 s: TCP with keep-alive, TLS, HTTP/2
//
// Only the queue waits; grpc.WaitForReady makes no difference. Opening a stream
// takes a place in the queue; an open stream does not. After FailFast without a
// connection all waiting calls fail with DEADLINE_EXCEEDED and the last reason,
// and new ones with UNAVAILABLE, until an address is connected.
//
// The addresses remain while DNS fails, and for 30 s if DNS then has none (see
// [resolve.ServeStale]). Streams of a removed address, or of a server that sends
// GOAWAY, continue. New ones use another connection.
//
// Errors have the codes of [Code].
type ControlPlaneConn struct {
	cfg    ControlPlaneConfig
	client *Client
	svc    Service
	leaf   Service
	drain  *layer.Drainer
	cancel context.CancelFunc
	links  controlLinks
}

var _ grpc.ClientConnInterface = (*ControlPlaneConn)(nil)

// NewControlPlaneConn starts to resolve cfg.Addr and to connect, and returns at once. It lives
// until ctx ends or [ControlPlaneConn.Close] is called. It returns an error if cfg is invalid.
func NewControlPlaneConn(ctx context.Context, cfg ControlPlaneConfig) (*ControlPlaneConn, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, fmt.Errorf("grpclayer: control: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &ControlPlaneConn{cfg: cfg, leaf: leaf(), drain: layer.NewDrainer(), cancel: cancel}
	c.svc = NewStack(layer.WithTarget[*Reply](cfg.Addr), layer.WithMetrics[*Reply](cfg.Instruments)).
		Drain(c.drain).
		Metrics(cfg.Instruments).
		Queue(cfg.QueueCapacity, cfg.FailFast).
		Service(balance.Resolve(ctx, controlResolver(cfg.Addr, cfg.Resolver), cfg.Addr, c.endpoint,
			balance.WithCompletion(Completion), balance.WithClassifier(Classify[*Reply]), balance.WithMetrics[*Reply](cfg.Balancer)))
	c.client = &Client{svc: c.svc}
	return c, nil
}

// endpoint returns the service of one address. The balancer polls it until it is connected.
func (c *ControlPlaneConn) endpoint(ctx context.Context, t discover.Target) Service {
	addr := t.Endpoint.Addr.String()
	connect := func(ctx context.Context) (Service, error) { return c.connect(ctx, addr) }
	return layer.Reconnect(ctx, connect, c.cfg.Backoff,
		layer.WithTarget[*Reply](addr), layer.WithMetrics[*Reply](c.cfg.Instruments))
}

// Invoke makes a unary call.
func (c *ControlPlaneConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.client.Unary(ctx, method, args, reply, nil, invokeOnLink, atOnce(opts)...)
}

// NewStream opens a stream. For its end see [Completion].
func (c *ControlPlaneConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.client.Stream(ctx, desc, nil, method, streamOnLink, atOnce(opts)...)
}

// atOnce disables gRPC's wait for a connection, because the queue waits.
func atOnce(opts []grpc.CallOption) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.WaitForReady(false))
}

// Close rejects new calls and waits for the open ones until ctx ends. Then it closes them, and
// returns an error with their number. Watches do not end by themselves, so end them first, or
// pass a ctx that has ended. All connections are closed when it returns.
func (c *ControlPlaneConn) Close(ctx context.Context) error {
	err := c.drain.Drain(ctx)
	c.cancel()
	c.links.close()
	return err
}

// Describe shows the stack in request order, with the state of each address.
func (c *ControlPlaneConn) Describe() layer.Node {
	next := layer.Describe(c.svc)
	state := layer.State{{Key: "authority", Value: c.cfg.Addr}, {Key: "tls", Value: "none"}}
	if c.cfg.TLS != nil {
		state[1].Value = c.cfg.TLS.ServerName
	}
	return layer.Node{Name: "origin", State: state, Next: &next}
}

// ControlPlaneConfig configures [NewControlPlaneConn]. Only Addr is required. The
// defaults are those of linkerd's outbound proxy.
type ControlPlaneConfig struct {
	// Addr is "host:port". An IP address and localhost are not looked up. Any
	// other host is looked up by SRV records, then by A and AAAA records. Addr
	// is also the authority of every call.
	Addr string

	// TLS configures TLS; nil is cleartext. The default ServerName is the host of
	// Addr without a dot at the end. The default NextProtos is "h2". A server
	// without ALPN is accepted, because proxies in front of servers have none.
	TLS *tls.Config

	// ConnectTimeout limits TCP, TLS and the SETTINGS of HTTP/2 together. 0 or
	// less is 1 s. linkerd's proxy uses 300 ms for controllers on the loopback.
	ConnectTimeout time.Duration

	// KeepAlive is the idle time before the first TCP keep-alive probe, and the
	// interval of the probes. After three probes the connection is closed. 0 is
	// 10 s; a negative value sends no probes.
	KeepAlive time.Duration

	// Backoff is the pause between attempts to connect to one address. A zero
	// field has its default.
	Backoff layer.Backoff

	// QueueCapacity limits the calls and streams that wait for a connection: 0 is
	// 1000, and with a negative value none waits.
	QueueCapacity int

	// FailFast limits their wait: 0 is 30 s, and with a negative value only their
	// contexts limit it.
	FailFast time.Duration

	// Resolver resolves hosts. The default is [dns.New].
	Resolver resolve.Resolver

	// UserAgent precedes that of gRPC.
	UserAgent string

	// DialOptions are options of each connection, such as message sizes and
	// credentials of calls. They override those of this package, so they must not
	// set transport credentials or dialers.
	DialOptions []grpc.DialOption

	Instruments layer.Instruments   // of calls, the queue, and connect attempts
	Balancer    balance.Instruments // of the addresses
	Log         *slog.Logger        // receives failed and new connections; nil logs nothing
}

// checked returns the config with its defaults, or the first error.
func (c ControlPlaneConfig) checked() (ControlPlaneConfig, error) {
	if c.Addr == "" {
		return c, errors.New("empty Addr, must be host:port")
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return c, err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return c, fmt.Errorf("address %q: port must be 1 to 65535", c.Addr)
	}
	if strings.TrimSuffix(host, ".") == "" {
		return c, fmt.Errorf("address %q: empty host", c.Addr)
	}
	c.TLS = controlTLSConfig(c.TLS, strings.TrimSuffix(host, "."))
	if err := backoff.Check(c.Backoff); err != nil {
		return c, err
	}
	c.Backoff = c.Backoff.OrDefault()
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

// controlTLSConfig returns a copy of cfg, which may be nil, for a host.
func controlTLSConfig(cfg *tls.Config, host string) *tls.Config {
	if cfg == nil {
		return nil
	}
	cfg = cfg.Clone()
	cfg.ServerName = cmp.Or(cfg.ServerName, host)
	if cfg.NextProtos == nil {
		cfg.NextProtos = []string{"h2"}
	}
	return cfg
}

// controlResolver resolves a control plane as linkerd's proxy does: SRV records
// first, then addresses. addr is "host:port".
func controlResolver(addr string, r resolve.Resolver) resolve.Resolver {
	if known := knownAddresses(addr); known != nil {
		return static.New(map[string][]resolve.Endpoint{addr: known})
	}
	return resolve.ServeStale(resolve.Fallback(services(r), r), resolve.StalePolicy{})
}

// knownAddresses returns the addresses of addr without DNS, or nil if it needs
// DNS. localhost does not (RFC 6761, section 6.3).
func knownAddresses(addr string) []resolve.Endpoint {
	host, port, _ := net.SplitHostPort(addr) // valid, see checked
	n, _ := strconv.ParseUint(port, 10, 16)
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	} else if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		ips = append(ips, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	var known []resolve.Endpoint //nolint:prealloc // nil for a name
	for _, ip := range ips {
		known = append(known, resolve.Endpoint{ID: resolve.ID{Addr: netip.AddrPortFrom(ip, uint16(n))}})
	}
	return known
}

// services looks up the SRV records of a host, which have their own ports.
// Without them, or if the server reports an error for them, the target does not
// exist, so that the next resolver is used.
func services(r resolve.Resolver) resolve.Resolver {
	return resolve.Func(func(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
		host, _, _ := net.SplitHostPort(target)
		return func(yield func(resolve.Update, error) bool) {
			found := false
			for u, err := range r.Resolve(ctx, host) {
				switch {
				case err != nil && !found:
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

// linkKey is the context key of the connection of a call.
type linkKey struct{}

var errNoLink = status.Error(codes.Internal, "grpclayer: the call has no connection")

func invokeOnLink(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return errNoLink
	}
	err := l.cc.Invoke(ctx, method, req, reply, opts...)
	l.rejectIfLost(ctx, err)
	return err
}

func streamOnLink(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return nil, errNoLink
	}
	s, err := l.cc.NewStream(ctx, desc, method, opts...)
	l.rejectIfLost(ctx, err)
	return s, err
}

// rejectIfLost turns an error without a connection into a rejection. With a connection,
// the error belongs to the call: for example, its credentials may be unavailable. gRPC
// leaves the state Ready before any call can fail, and does not return to it.
func (l *controlLink) rejectIfLost(ctx context.Context, err error) {
	if a := attemptOf(ctx); a != nil && status.Code(err) == codes.Unavailable && !a.sent.Load() &&
		l.cc.GetState() != connectivity.Ready {
		a.rejection.Store(&pickError{l.lost})
	}
}

// sentRecorder records that a call was sent on a connection.
type sentRecorder struct{}

func (sentRecorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sentRecorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentRecorder) HandleConn(context.Context, stats.ConnStats)                       {}

func (sentRecorder) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if a := attemptOf(ctx); a != nil {
		a.sent.Store(true)
	}
}

// controlTLS is TLS for one connection. gRPC's own credentials require ALPN, which proxies in
// front of a controller lack, and an authority that equals the name in the certificate.
type controlTLS struct {
	config *tls.Config
	until  time.Time // deadline of this connection attempt
	failed func(error)
}

// ClientHandshake makes the handshake within the deadline of the attempt.
func (t *controlTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithDeadline(ctx, t.until)
	defer cancel()
	conn := tls.Client(raw, t.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		t.failed(err)
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ServerHandshake returns an error.
func (t *controlTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpclayer: these credentials are for clients")
}

// Info has no server name, so that any authority is allowed.
func (t *controlTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns a copy.
func (t *controlTLS) Clone() credentials.TransportCredentials {
	other := *t
	return &other
}

// OverrideServerName does nothing, because gRPC does not call it.
func (t *controlTLS) OverrideServerName(string) error { return nil }
