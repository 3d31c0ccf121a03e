package settings

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Options returns the socket options.
func (s Socket) Options() []tcplayer.SocketOption {
	var opts []tcplayer.SocketOption
	if s.KeepAlive > 0 {
		opts = append(opts, tcplayer.WithKeepAlive(net.KeepAliveConfig{Enable: true, Idle: s.KeepAlive, Interval: s.KeepAlive}))
	}
	if s.UserTimeout > 0 {
		opts = append(opts, tcplayer.WithUserTimeout(s.UserTimeout))
	}
	return opts
}

// MaxWait returns FailFast, or 1 ns instead of 0, because 0 means no limit for a queue
// layer.
func (q Queue) MaxWait() time.Duration { return max(q.FailFast, 1) }

// Dial is a function that makes a connection.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Requests returns the options of an endpoint for requests, with connections made by
// dial.
func (c Connect) Requests(dial Dial, pool Pool) []httplayer.EndpointOption {
	return []httplayer.EndpointOption{
		httplayer.WithDialContext(dial),
		httplayer.WithConnectTimeout(c.Timeout),
		httplayer.WithBackoff(c.endpointBackoff()),
		httplayer.WithIdleTimeout(max(pool.Idle, 1)),
		httplayer.WithMaxIdleConns(pool.MaxIdle),
		httplayer.WithCleartextHTTPS(), // dial adds TLS, and absolute targets stay unchanged
	}
}

// Bytes returns the options of an endpoint for forwarded connections.
func (c Connect) Bytes(dial Dial) []tcplayer.EndpointOption {
	return []tcplayer.EndpointOption{
		tcplayer.WithDialContext(dial), tcplayer.WithConnectTimeout(c.Timeout), tcplayer.WithBackoff(c.endpointBackoff()),
	}
}

// endpointBackoff returns Backoff with a Max of at most 1 s, so that a recovered endpoint
// gets requests soon. Controllers use all of Backoff.
func (c Connect) endpointBackoff() layer.Backoff {
	b := c.Backoff
	b.Max = min(b.Max, time.Second)
	b.Min = min(b.Min, b.Max)
	return b
}

// Limits returns the limits of streams of the destination controller. Below 0 means no
// limit, as packages resolve/linkerd and profiles/linkerd expect it.
func (c *Control) Limits() StreamLimits {
	limits := c.Streams
	for _, d := range []*time.Duration{&limits.Initial, &limits.Idle, &limits.Lifetime} {
		if *d <= 0 || isLoopback(c.Destination.Addr) {
			*d = -1
		}
	}
	return limits
}

// Load reads the files of an identity. The error contains all problems.
func (i *Identity) Load() (identity.Config, error) {
	c, err := identity.Load(i.Dir, string(i.TrustAnchors), i.TokenFile, i.ServerID, i.ServerName)
	c.MinRefresh, c.MaxRefresh = max(i.MinRefresh, 1), i.MaxRefresh // 0 would mean the default
	return c, err
}

// Check returns the error of Load. It returns nil without an identity, and for one that
// is incomplete, because [Read] reports that.
func (i *Identity) Check() error {
	if i == nil || i.Dir == "" || len(i.TrustAnchors) == 0 || i.TokenFile == "" || i.ServerID == "" || i.ServerName == "" {
		return nil
	}
	_, err := i.Load()
	return err
}

// Options returns the options of an HTTP server. MaxPendingAcceptResetStreams becomes
// the closest setting, the number of streams that a client may reset. The server
// has no MaxSendBufSize or AdaptiveFlowControl. MaxHeaderListSize also applies to HTTP/1.
func (h HTTP2) Options() []httplayer.ServerOption {
	opts := []httplayer.ServerOption{
		httplayer.WithHTTP2Config(http.HTTP2Config{
			MaxConcurrentStreams:          int(h.MaxConcurrentStreams),
			MaxReadFrameSize:              int(h.MaxFrameSize),
			MaxReceiveBufferPerStream:     int(h.InitialStreamWindowSize),
			MaxReceiveBufferPerConnection: int(h.InitialConnectionWindowSize),
			SendPingTimeout:               h.KeepAliveInterval,
			PingTimeout:                   h.KeepAliveTimeout,
		}),
		httplayer.WithMaxStreamResets(h.MaxPendingAcceptResetStreams),
	}
	if h.MaxHeaderListSize > 0 {
		opts = append(opts, httplayer.WithMaxHeaderBytes(int(min(uint64(h.MaxHeaderListSize), maxHeader))))
	}
	return opts
}

// maxHeader is the largest value that is passed to the server. The server can add a few
// KiB to it without an overflow.
const maxHeader = min(maxUint32-320, math.MaxInt-4<<10)

// Find returns the function that finds the original destination of a connection. If the
// system does not track the connection, the destination is the listener itself.
func (o Origin) Find() tcplayer.Origin {
	switch o.Kind {
	case ProxyProtocol:
		return tcplayer.ProxyProtocol()
	case Fixed:
		return tcplayer.FixedDst(o.Addr)
	case Redirected:
	}
	redirected := tcplayer.SOOriginalDst()
	return func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		to, err := redirected(ctx, conn)
		if isUntracked(err) {
			return conn, nil
		}
		return to, err
	}
}

// Check returns an error if the system does not report the original destination of
// redirected connections. It tests that with a connection to itself. Other kinds of Origin
// need no check.
func (o Origin) Check(ctx context.Context) error {
	if o.Kind == ProxyProtocol || o.Kind == Fixed {
		return nil
	}
	var cfg net.ListenConfig
	cfg.SetMultipathTCP(false)
	l, err := cfg.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	client, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		return err
	}
	defer server.Close()
	_, err = tcplayer.SOOriginalDst()(ctx, server)
	return err
}

// isUntracked reports whether err means that the system has no rules, or does not track
// the connection. EOPNOTSUPP of an MPTCP socket does not: it may have been redirected.
func isUntracked(err error) bool {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return false
	}
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOPROTOOPT) || errors.Is(err, syscall.ENOENT)
}
