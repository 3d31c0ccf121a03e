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

// Options returns the settings of s as options of package tcplayer, except the backlog.
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

// MaxWait returns the maximum wait in the queue of package layer: FailFast, or 1 ns if
// FailFast is 0. For that queue, 0 would mean no limit.
func (q Queue) MaxWait() time.Duration { return max(q.FailFast, 1) }

// Dial is the type of a function that connects to addr.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Requests returns the options of an endpoint that sends HTTP requests. The endpoint makes
// its connections with dial and keeps as many idle connections as pool allows.
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

// Bytes returns the options of an endpoint that forwards connections as bytes. The endpoint
// makes its connections with dial.
func (c Connect) Bytes(dial Dial) []tcplayer.EndpointOption {
	return []tcplayer.EndpointOption{
		tcplayer.WithDialContext(dial), tcplayer.WithConnectTimeout(c.Timeout), tcplayer.WithBackoff(c.endpointBackoff()),
	}
}

// endpointBackoff returns the backoff for connections to an endpoint. Its maximum is at
// most 1 s, so that an endpoint that has recovered receives requests soon. Connections to
// the control plane use c.Backoff itself.
func (c Connect) endpointBackoff() layer.Backoff {
	b := c.Backoff
	b.Max = min(b.Max, time.Second)
	b.Min = min(b.Min, b.Max)
	return b
}

// Limits returns c.Streams in the form of packages resolve/linkerd and profiles/linkerd,
// in which -1 and not 0 means no limit. For a controller on this machine, all limits are
// -1.
func (c *Control) Limits() StreamLimits {
	limits := c.Streams
	for _, d := range []*time.Duration{&limits.Initial, &limits.Idle, &limits.Lifetime} {
		if *d <= 0 || isLoopback(c.Destination.Addr) {
			*d = -1
		}
	}
	return limits
}

// Load reads the files of the identity. The error contains all errors of the files.
func (i *Identity) Load() (identity.Config, error) {
	c, err := identity.Load(i.Dir, string(i.TrustAnchors), i.TokenFile, i.ServerID, i.ServerName)
	c.MinRefresh, c.MaxRefresh = max(i.MinRefresh, 1), i.MaxRefresh // 0 would mean the default
	return c, err
}

// Check returns the error of [Identity.Load], if there is one. It returns nil if i is nil.
// It also returns nil if a field is missing, because [Read] reports that.
func (i *Identity) Check() error {
	if i == nil || i.Dir == "" || len(i.TrustAnchors) == 0 || i.TokenFile == "" || i.ServerID == "" || i.ServerName == "" {
		return nil
	}
	_, err := i.Load()
	return err
}

// Options returns h as options of an HTTP server. The server has no setting for
// MaxSendBufSize and AdaptiveFlowControl. MaxPendingAcceptResetStreams becomes the limit
// of streams that a client may reset, which is the closest setting. MaxHeaderListSize also
// applies to HTTP/1.
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

// maxHeader is the largest value that is passed to the server as MaxHeaderListSize. The
// server adds a few KiB to the value, and the sum must not overflow.
const maxHeader = min(maxUint32-320, math.MaxInt-4<<10)

// Find returns a function that wraps a connection. The local address of the wrapper is the
// original destination of the connection. If the system has not redirected the connection,
// the function returns it unchanged, as a connection to the listener itself.
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

// Check returns an error if the system cannot report the original destination of
// redirected connections. It makes a test connection on loopback. It returns nil if o.Kind
// is not Redirected, because the system is then not used.
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

// isUntracked reports whether err means that the connection was not redirected, because the
// system has no rules or does not track it. It returns false for EOPNOTSUPP, because a
// redirected MPTCP connection has this error too.
func isUntracked(err error) bool {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return false
	}
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOPROTOOPT) || errors.Is(err, syscall.ENOENT)
}
