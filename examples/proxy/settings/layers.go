package settings

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Options returns s as options for package tcplayer, except the backlog.
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

// MaxWait returns FailFast for package layer's queue. There, 0 would mean no limit, so it becomes
// 1 ns.
func (q Queue) MaxWait() time.Duration { return max(q.FailFast, 1) }

// Dial connects to addr.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Requests returns the options for an endpoint that sends HTTP requests over connections from dial,
// and keeps as many idle connections as pool allows.
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

// Bytes returns the options for an endpoint that forwards bytes over connections from dial.
func (c Connect) Bytes(dial Dial) []tcplayer.EndpointOption {
	return []tcplayer.EndpointOption{
		tcplayer.WithDialContext(dial), tcplayer.WithConnectTimeout(c.Timeout), tcplayer.WithBackoff(c.endpointBackoff()),
	}
}

// endpointBackoff returns the backoff for connections to an endpoint. It is at most 1 s, so that an
// endpoint that has recovered soon gets requests again. Connections to the control plane use
// c.Backoff itself.
func (c Connect) endpointBackoff() layer.Backoff {
	b := c.Backoff
	b.Max = min(b.Max, time.Second)
	b.Min = min(b.Min, b.Max)
	return b
}

// Limits returns c.Streams for packages resolve/linkerd and profiles/linkerd, in which -1 instead
// of 0 means no limit. A controller on this machine has no limits.
func (c *Control) Limits() StreamLimits {
	limits := c.Streams
	// -1 disables a limit. On this machine, a silent connection would be noticed anyway.
	for _, d := range []*time.Duration{&limits.Initial, &limits.Idle, &limits.Lifetime} {
		if *d <= 0 || isLoopback(c.Destination.Addr) {
			*d = -1
		}
	}
	return limits
}

// Load reads the identity's files. The error joins all errors in them.
func (i *Identity) Load() (identity.Config, error) {
	c, err := identity.Load(i.Dir, string(i.TrustAnchors), i.TokenFile, i.ServerID, i.ServerName)
	c.MinRefresh = max(i.MinRefresh, 1) // 0 would mean the default
	c.MaxRefresh = i.MaxRefresh
	return c, err
}

// IsNew reports whether the identity's directory exists, but with neither a key nor a signing
// request, as in a pod that has just started.
func (i *Identity) IsNew() bool {
	if info, err := os.Stat(i.Dir); err != nil || !info.IsDir() {
		return false
	}
	// The key and the signing request of linkerd's identity.
	for _, name := range []string{"key.p8", "csr.der"} {
		if _, err := os.Stat(filepath.Join(i.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Check returns [Identity.Load]'s error. It returns nil if i is nil or lacks a field, because
// [Read] reports that.
func (i *Identity) Check() error {
	if i == nil || i.Dir == "" || len(i.TrustAnchors) == 0 || i.TokenFile == "" || i.ServerID == "" || i.ServerName == "" {
		return nil
	}
	_, err := i.Load()
	return err
}

// Options returns h as options for an HTTP server, which has no settings for MaxSendBufSize and
// AdaptiveFlowControl. MaxPendingAcceptResetStreams becomes the limit of streams that a client may
// reset, which is the closest setting. MaxHeaderListSize also applies to HTTP/1.
func (h HTTP2) Options() []httplayer.ServerOption {
	// 0 keeps the server's default.
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
	// 0 keeps the server's default.
	if h.MaxHeaderListSize > 0 {
		opts = append(opts, httplayer.WithMaxHeaderBytes(int(min(uint64(h.MaxHeaderListSize), maxHeader))))
	}
	return opts
}

// maxHeader is the largest MaxHeaderListSize that is passed to the server. The server adds a few
// KiB, which must not overflow.
const maxHeader = min(maxUint32-320, math.MaxInt-4<<10)

// Find returns a function that wraps a connection so that its local address is the original
// destination. A connection that the system has not redirected is returned unchanged, as one to the
// listener itself.
func (o Origin) Find() tcplayer.Origin {
	switch o.Kind {
	case ProxyProtocol:
		return tcplayer.ProxyProtocol()
	case Fixed:
		return tcplayer.FixedDst(o.Addr)
	case Redirected:
	}
	// The system knows the address that the client used before iptables redirected the connection.
	redirected := tcplayer.SOOriginalDst()
	return func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		wrapped, err := redirected(ctx, conn)
		// An untracked connection was made to the proxy itself.
		if isUntracked(err) {
			return conn, nil
		}
		return wrapped, err
	}
}

// Check returns an error if the system cannot report the original destination of redirected
// connections, which it tries with a connection on loopback. For other kinds of origin, it returns
// nil, because the system is not asked.
func (o Origin) Check(ctx context.Context) error {
	if o.Kind == ProxyProtocol || o.Kind == Fixed {
		return nil
	}
	var cfg net.ListenConfig
	// MPTCP connections cannot be asked for their original destination.
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

// isUntracked reports whether err means that the connection was not redirected, because the system
// has no rules or does not track it. EOPNOTSUPP does not count, because redirected MPTCP
// connections fail with it too.
func isUntracked(err error) bool {
	// ErrUnsupported would include this error, so it is checked first.
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return false
	}
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOPROTOOPT) || errors.Is(err, syscall.ENOENT)
}
