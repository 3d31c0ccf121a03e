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
//	origin       the authority is Addr, whatever address serves the call
//	drain        rejects calls after Close
//	metrics      calls, as control_* counts them
//	queue        1000 calls and streams wait up to 30 s for a connection
//	balance      of the addresses that DNS finds: peak EWMA, 30 ms and 10 s
//	└ reconnect  each address is connected at once, and again when a call finds it lost;
//	             100 ms to 60 s between attempts
//	  └ grpc     connect timeout 1 s: TCP with keep-alive, TLS, HTTP/2
//
// Only the queue waits; grpc.WaitForReady makes no difference. Opening a stream
// takes a place in the queue; an open stream does not. After FailFast without a
// connection all waiting calls fail with DEADLINE_EXCEEDED and the last reason,
// and new ones with UNAVAILABLE, until an address is connected.
//
// When DNS fails, the addresses stay; when it then loses all of them, they stay
// for 30 s (see [resolve.ServeStale]). Streams of an address that is gone, or
// of a server that sends GOAWAY, continue; new ones use another connection.
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

// NewControlPlaneConn begins to resolve cfg.Addr and to connect, and returns at
// once, also while the control plane is away. It lives until ctx ends or
// [ControlPlaneConn.Close] is called. The error is that of an invalid cfg.
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

// endpoint is one address: the balancer asks for it until it is connected.
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

// atOnce has gRPC not wait for a connection: that is for the queue.
func atOnce(opts []grpc.CallOption) []grpc.CallOption {
	return append(slices.Clip(opts), grpc.WaitForReady(false))
}

// Close rejects new calls and waits for the open ones until ctx ends. Then it
// closes them, and returns an error with their number. Watches do not end by
// themselves, so end them first, or pass a ctx that has ended. All connections
// are closed when it returns.
func (c *ControlPlaneConn) Close(ctx context.Context) error {
	err := c.drain.Drain(ctx)
	c.cancel()
	c.links.close()
	return err
}

// Describe shows the stack in request order, with its addresses and how they
// are.
func (c *ControlPlaneConn) Describe() layer.Node {
	next := layer.Describe(c.svc)
	state := layer.State{{Key: "authority", Value: c.cfg.Addr}, {Key: "tls", Value: "none"}}
	if c.cfg.TLS != nil {
		state[1].Value = c.cfg.TLS.ServerName
	}
	return layer.Node{Name: "origin", State: state, Next: &next}
}

// ControlPlaneConfig is what [NewControlPlaneConn] can be told. Only Addr is needed. The
// defaults are those of linkerd's proxy, outbound.
type ControlPlaneConfig struct {
	// Addr is "host:port". An IP address and localhost are not looked up. Any
	// other host is looked up by SRV records, then by A and AAAA records. Addr
	// is also the authority of every call.
	Addr string

	// TLS is how connections are secured; nil means in clear. Where it says no
	// ServerName, that is the host of Addr without the dot at its end. Where
	// NextProtos is nil, "h2" is offered; a server that chooses nothing is
	// spoken to all the same, since proxies in front of servers do that.
	TLS *tls.Config

	// ConnectTimeout is how long TCP, TLS and the first word of HTTP/2 may take
	// together. 1 s if it is 0 or less; linkerd's proxy takes its inbound
	// timeout, 300 ms, for controllers on the loopback.
	ConnectTimeout time.Duration

	// KeepAlive is how long a connection is silent before TCP asks whether the
	// peer is there, and how long after that it asks again; after three times it
	// is gone. 10 s if it is 0; less than 0 does not ask.
	KeepAlive time.Duration

	// Backoff is between attempts to connect to one address. A field that is 0 has
	// its default.
	Backoff layer.Backoff

	// QueueCapacity is how many calls and streams may wait for a connection:
	// 1000 if it is 0, none if it is less.
	QueueCapacity int

	// FailFast is how long they may. 30 s if it is 0; less than 0 is as long as
	// their contexts allow.
	FailFast time.Duration

	// Resolver finds the addresses of hosts. Nil means [dns.New].
	Resolver resolve.Resolver

	// UserAgent comes before gRPC's own.
	UserAgent string

	// DialOptions are for each connection, such as message sizes and
	// credentials of calls. They come last and win, so leave transport
	// credentials and dialers alone.
	DialOptions []grpc.DialOption

	Instruments layer.Instruments   // of calls, the queue, and Connects
	Balancer    balance.Instruments // of the addresses
	Log         *slog.Logger        // warnings of connections that fail, and when they are well again; nil is silence
}

// checked returns the config with its defaults, or the first error.
func (c ControlPlaneConfig) checked() (ControlPlaneConfig, error) {
	if c.Addr == "" {
		return c, errors.New("there is no Addr: it is host:port")
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return c, err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return c, fmt.Errorf("address %q: the port is not a number from 1 to 65535", c.Addr)
	}
	if strings.TrimSuffix(host, ".") == "" {
		return c, fmt.Errorf("address %q: there is no host", c.Addr)
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

// controlResolver finds the addresses of a control plane as linkerd's proxy
// does: SRV records first, then addresses. addr is "host:port".
func controlResolver(addr string, r resolve.Resolver) resolve.Resolver {
	if known := knownAddresses(addr); known != nil {
		return static.New(map[string][]resolve.Endpoint{addr: known})
	}
	return resolve.ServeStale(resolve.Fallback(services(r), r), resolve.StalePolicy{})
}

// knownAddresses are those that need no look-up; nil if one is needed. A DNS
// server is not to be asked for localhost (RFC 6761, section 6.3).
func knownAddresses(addr string) []resolve.Endpoint {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = append(ips, ip)
	} else if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		ips = append(ips, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	var known []resolve.Endpoint
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
			answered := false
			for u, err := range r.Resolve(ctx, host) {
				switch {
				case err != nil && !answered:
					u, err = resolve.Update{Kind: resolve.DoesNotExist}, nil
				case err == nil && u.Kind == resolve.Empty:
					u.Kind = resolve.DoesNotExist
				case err == nil && len(u.Endpoints) > 0:
					answered = true
				}
				if !yield(u, err) {
					return
				}
			}
		}
	})
}

// linkKey is how a call that leaves the layers finds its connection.
type linkKey struct{}

var errNoLink = status.Error(codes.Internal, "grpclayer: the call has no connection")

func invokeOnLink(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	l, ok := ctx.Value(linkKey{}).(*controlLink)
	if !ok {
		return errNoLink
	}
	err := l.cc.Invoke(ctx, method, req, reply, opts...)
	l.judge(ctx, err)
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
	l.judge(ctx, err)
	return s, err
}

// judge turns an error without a connection into a rejection. With a
// connection, the error belongs to the call: its credentials may be
// unavailable. gRPC leaves the state Ready before any call can fail, and does
// not return to it.
func (l *controlLink) judge(ctx context.Context, err error) {
	if a := attemptOf(ctx); a != nil && status.Code(err) == codes.Unavailable && !a.sent.Load() &&
		l.cc.GetState() != connectivity.Ready {
		a.refusal.Store(&refusal{l.lost})
	}
}

// sending hears when a call is given to a connection.
type sending struct{}

func (sending) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sending) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sending) HandleConn(context.Context, stats.ConnStats)                       {}

func (sending) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); !ok {
		return
	}
	if a := attemptOf(ctx); a != nil {
		a.sent.Store(true)
	}
}

// controlTLS is TLS for one connection. gRPC's own insists on ALPN, which
// proxies in front of a controller do not speak, and on an authority that is the
// name in the certificate.
type controlTLS struct {
	config *tls.Config
	until  time.Time // of the attempt to connect that this is for
	failed func(error)
}

// ClientHandshake ends with the attempt.
func (t *controlTLS) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ctx, cancel := context.WithDeadline(ctx, t.until)
	defer cancel()
	conn := tls.Client(raw, t.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		t.failed(err)
		return nil, nil, err
	}
	return conn, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ServerHandshake is not for clients.
func (t *controlTLS) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("grpclayer: these credentials are a client's")
}

// Info names no server, so that the authority is free.
func (t *controlTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns a copy.
func (t *controlTLS) Clone() credentials.TransportCredentials {
	other := *t
	return &other
}

// OverrideServerName is gRPC's, which does not call it any more.
func (t *controlTLS) OverrideServerName(string) error { return nil }
