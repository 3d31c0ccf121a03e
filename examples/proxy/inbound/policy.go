package inbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/layer/tcplayer/identity"
)

// client is who a connection is from.
type client struct {
	addr   netip.Addr
	secure bool   // by TLS that ended here
	id     string // that it proved; "" is none
}

func clientOf(conn net.Conn) client {
	var c client
	if conn == nil {
		return c
	}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		c.addr = tcp.AddrPort().Addr().Unmap()
	}
	if state, ok := tcplayer.TLSState(conn); ok {
		c.secure = true
		c.id, _ = identity.PeerIdentity(state)
	}
	return c
}

// clientID is the identity that the client of a request proved.
func clientID(req *http.Request) string { return callerOf(req.Context()).id }

// permits says whether a client may use a port of the application: what the
// port requires comes on top of the default policy.
func (in *Inbound) permits(port uint16, c client) bool {
	switch {
	case in.RequireIdentity.Contains(port) && c.id == "", in.RequireTLS.Contains(port) && !c.secure:
		return false
	}
	switch in.DefaultPolicy {
	case settings.Deny:
		return false
	case settings.AllAuthenticated:
		return c.id != ""
	case settings.ClusterAuthenticated:
		return c.id != "" && in.ofCluster(c.addr)
	case settings.ClusterUnauthenticated:
		return in.ofCluster(c.addr)
	case settings.AllUnauthenticated, settings.Audit:
	}
	return true
}

func (in *Inbound) ofCluster(addr netip.Addr) bool {
	return slices.ContainsFunc(in.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// admit rejects connections whose clients may not make them.
func (in *Inbound) admit(conn net.Conn) error { return in.decide(in.decided.tcp, conn, clientOf(conn)) }

// authorize rejects requests likewise.
func (in *Inbound) authorize(req *http.Request) error {
	return in.decide(in.decided.http, httplayer.ConnFromContext(req.Context()), callerOf(req.Context()))
}

func (in *Inbound) decide(count func(meters.Decision), conn net.Conn, c client) error {
	dst, _ := tcplayer.OriginalDst(conn)
	made := meters.Decision{Target: dst, Client: in.meter(dst, c)}
	reason := "this client may not use this port"
	loop := in.Refuse(dst)
	switch {
	case loop != nil:
		reason = loop.Error()
	case in.permits(dst.Port(), c):
		made.Allowed = true
		count(made)
		return nil
	}
	count(made)
	return &layer.Error{
		Layer: "policy", Endpoint: dst.String(), Reason: reason, Err: &httplayer.StatusError{Code: http.StatusForbidden},
	}
}

// isMeshed rejects connections to this proxy whose clients proved no identity.
func isMeshed(conn net.Conn) error {
	if clientOf(conn).id == "" {
		return errors.New("only proxies with an identity may connect to this one")
	}
	return nil
}

// isOwn rejects connections to addresses that are none of this pod.
func (in *Inbound) isOwn(conn net.Conn) error {
	dst, ok := tcplayer.OriginalDst(conn)
	switch {
	case !ok:
		return errors.New("no original destination")
	case len(in.IPs) > 0 && !slices.Contains(in.IPs, dst.Addr()):
		return fmt.Errorf("%s is no address of this pod", dst.Addr())
	}
	return nil
}

// isOpaque says of a connection that it is to a port where the server may speak
// first.
func (in *Inbound) isOpaque(_ context.Context, conn net.Conn) bool {
	dst, _ := tcplayer.OriginalDst(conn)
	return in.OpaquePorts.Contains(dst.Port())
}

// asked is the port that a connection was made to.
func asked(req tcplayer.Request) (netip.AddrPort, error) { return req.Server, nil }

// byHeader goes by what a transport header says of the connection. There is no
// gateway here: a header that names another host is rejected.
func (in *Inbound) byHeader() tcplayer.Server {
	opaque, spoken := in.measured(in.opaque, false), in.measured(in.http, false)
	return layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		if h.Name != "" {
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "transport", Reason: "this proxy is no gateway to " + h.Name}
		}
		if err := in.isOwn(conn); err != nil {
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "transport", Err: err}
		}
		if h.Protocol == tcplayer.Opaque {
			return opaque.Call(ctx, conn)
		}
		return spoken.Call(ctx, conn)
	})
}

// decisions count what the policy allowed and denied.
type decisions struct{ http, tcp func(meters.Decision) }

func newDecisions(c Config) decisions {
	policy := string(c.DefaultPolicy)
	return decisions{http: c.Meters.Authz("http", policy), tcp: c.Meters.Authz("tcp", policy)}
}
