package settings

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// Options are the settings as those of a socket.
func (s Socket) Options() []tcplayer.SocketOption {
	var opts []tcplayer.SocketOption
	if s.KeepAlive > 0 {
		opts = append(opts, tcplayer.KeepAlive(net.KeepAliveConfig{Enable: true, Idle: s.KeepAlive, Interval: s.KeepAlive}))
	}
	if s.UserTimeout > 0 {
		opts = append(opts, tcplayer.UserTimeout(s.UserTimeout))
	}
	return opts
}

// MaxWait is how long may be waited, for a layer that takes 0 for no limit.
func (q Queue) MaxWait() time.Duration { return max(q.FailFast, 1) }

// Dial makes a connection.
type Dial = func(ctx context.Context, network, addr string) (net.Conn, error)

// Requests are the settings as those of an endpoint that requests are sent to,
// on connections made by dial.
func (c Connect) Requests(dial Dial, kept Pool) []httplayer.EndpointOption {
	return []httplayer.EndpointOption{
		httplayer.DialContext(dial),
		httplayer.ConnectTimeout(c.Timeout),
		httplayer.Backoff(c.Backoff),
		httplayer.IdleTimeout(max(kept.Idle, 1)),
		httplayer.MaxIdleConns(kept.MaxIdle),
		httplayer.CleartextHTTPS(), // dial adds TLS, and an absolute target goes on as it came
	}
}

// Bytes are the settings as those of an endpoint that connections are forwarded
// to.
func (c Connect) Bytes(dial Dial) []tcplayer.EndpointOption {
	return []tcplayer.EndpointOption{
		tcplayer.DialContext(dial), tcplayer.ConnectTimeout(c.Timeout), tcplayer.Backoff(c.Backoff),
	}
}

// Limits are those that streams of the destination controller are held to, as
// resolvers and sources of profiles take them: below 0 is none.
func (c *Control) Limits() StreamLimits {
	limits := c.Streams
	for _, d := range []*time.Duration{&limits.Initial, &limits.Idle, &limits.Lifetime} {
		if *d <= 0 || isLoopback(c.Destination.Addr) {
			*d = -1
		}
	}
	return limits
}

// Load reads the files of an identity. The error has all that is wrong with them.
func (i *Identity) Load() (identity.Config, error) {
	c, err := identity.Load(i.Dir, string(i.TrustAnchors), i.TokenFile, i.ServerID, i.ServerName)
	c.MinRefresh, c.MaxRefresh = max(i.MinRefresh, 1), i.MaxRefresh // where 0 would be the usual
	return c, err
}

// Check is Load for what is wrong. Of no identity, and of one that is not said
// whole, it has nothing to say: [Read] has.
func (i *Identity) Check() error {
	if i == nil || i.Dir == "" || len(i.TrustAnchors) == 0 || i.TokenFile == "" || i.ServerID == "" || i.ServerName == "" {
		return nil
	}
	_, err := i.Load()
	return err
}

// Options are the settings as those of a server of HTTP. How many streams may
// be taken back is as near as it comes to MaxPendingAcceptResetStreams; for
// MaxSendBufSize and AdaptiveFlowControl net/http has nothing. Its
// MaxHeaderListSize is for the headers of HTTP/1 as well.
func (h HTTP2) Options() []httplayer.ServerOption {
	opts := []httplayer.ServerOption{
		httplayer.HTTP2(http.HTTP2Config{
			MaxConcurrentStreams:          int(h.MaxConcurrentStreams),
			MaxReadFrameSize:              int(h.MaxFrameSize),
			MaxReceiveBufferPerStream:     int(h.InitialStreamWindowSize),
			MaxReceiveBufferPerConnection: int(h.InitialConnectionWindowSize),
			SendPingTimeout:               h.KeepAliveInterval,
			PingTimeout:                   h.KeepAliveTimeout,
		}),
		httplayer.MaxTakenBack(h.MaxPendingAcceptResetStreams),
	}
	if h.MaxHeaderListSize > 0 {
		opts = append(opts, httplayer.MaxHeaderBytes(int(min(uint64(h.MaxHeaderListSize), mostHeader))))
	}
	return opts
}

// mostHeader leaves room for what net/http adds to it, 320 bytes in HTTP/2 and
// 4 KiB in HTTP/1: it would wrap round.
const mostHeader = min(most32-320, math.MaxInt-4<<10)

// Find is how a listener learns where a connection was going to. Where the system
// does not know of redirections, or of that of this connection, it was going to
// the listener.
func (o Origin) Find() tcplayer.Origin {
	switch o.Kind {
	case ProxyProtocol:
		return tcplayer.ProxyProtocol()
	case Fixed:
		return tcplayer.Fixed(o.Addr)
	case Redirected:
	}
	redirected := tcplayer.Redirected()
	return func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		to, err := redirected(ctx, conn)
		if isUntracked(err) {
			return conn, nil
		}
		return to, err
	}
}

// Check returns an error if the system does not tell where redirected connections
// were going. It asks for a connection that it makes to itself. Listeners with
// another kind of Origin need no check.
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
	_, err = tcplayer.Redirected()(ctx, server)
	return err
}

// isUntracked reports whether err says that the system has no rules, or tracks
// no connection like this one. A socket that cannot be asked, as one of MPTCP,
// may well have been redirected.
func isUntracked(err error) bool {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return false
	}
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.ENOPROTOOPT) || errors.Is(err, syscall.ENOENT)
}
