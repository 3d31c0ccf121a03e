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
)

// permits reports whether a client may use a port of the application. Both the
// default policy and the requirements of the port must permit it.
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
		return c.id != "" && in.isCluster(c.addr)
	case settings.ClusterUnauthenticated:
		return in.isCluster(c.addr)
	case settings.AllUnauthenticated, settings.Audit:
	}
	return true
}

func (in *Inbound) isCluster(addr netip.Addr) bool {
	return slices.ContainsFunc(in.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// admit rejects connections that the policy denies.
func (in *Inbound) admit(conn net.Conn) error { return in.decide(in.decided.tcp, conn, clientOf(conn)) }

// authorize rejects requests that the policy denies.
func (in *Inbound) authorize(req *http.Request) error {
	return in.decide(in.decided.http, httplayer.ConnFromContext(req.Context()), clientFromContext(req.Context()))
}

func (in *Inbound) decide(count func(meters.Decision), conn net.Conn, c client) error {
	dst, _ := tcplayer.OriginalDst(conn)
	decision := meters.Decision{Target: dst, Client: in.metricsClient(dst, c)}
	reason := "the policy denies this client the port"
	loop := in.Refuse(dst)
	switch {
	case loop != nil:
		reason = loop.Error()
	case in.permits(dst.Port(), c):
		decision.Allowed = true
		count(decision)
		return nil
	}
	count(decision)
	return &layer.Error{
		Layer: "policy", Endpoint: dst.String(), Reason: reason, Err: &httplayer.StatusError{Code: http.StatusForbidden},
	}
}

// isMeshed returns an error for a connection from a client without an identity.
func isMeshed(conn net.Conn) error {
	if clientOf(conn).id == "" {
		return errors.New("a direct connection needs a client with an identity")
	}
	return nil
}

// isOwn returns an error for a connection to an address that does not belong to this pod.
func (in *Inbound) isOwn(conn net.Conn) error {
	dst, ok := tcplayer.OriginalDst(conn)
	switch {
	case !ok:
		return errors.New("no original destination")
	case len(in.IPs) > 0 && !slices.Contains(in.IPs, dst.Addr()):
		return fmt.Errorf("%s is not an address of this pod", dst.Addr())
	}
	return nil
}

// isOpaque reports whether the server may speak first on the port of conn.
func (in *Inbound) isOpaque(_ context.Context, conn net.Conn) bool {
	dst, _ := tcplayer.OriginalDst(conn)
	return in.OpaquePorts.Contains(dst.Port())
}

// serverPort returns the port that a connection was made to.
func serverPort(req tcplayer.Request) (netip.AddrPort, error) { return req.Server, nil }

// byHeader serves a connection by its transport header. A header with the name of
// another host is rejected, because this proxy is not a gateway.
func (in *Inbound) byHeader() tcplayer.Server {
	opaque := connections().With("metrics", in.clientMetrics(false)).Service(in.opaque)
	http := connections().With("metrics", in.clientMetrics(false)).Service(in.http)
	return layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		if h.Name != "" {
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "transport", Reason: "this proxy is not a gateway to " + h.Name}
		}
		if err := in.isOwn(conn); err != nil {
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "transport", Err: err}
		}
		if h.Protocol == tcplayer.Opaque {
			return opaque.Call(ctx, conn)
		}
		return http.Call(ctx, conn)
	})
}

// decisions count the decisions of the policy.
type decisions struct{ http, tcp func(meters.Decision) }

func newDecisions(c Config) decisions {
	policy := string(c.DefaultPolicy)
	return decisions{http: c.Meters.Authz("http", policy), tcp: c.Meters.Authz("tcp", policy)}
}
