package inbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// This file applies the policy of a port to each connection that is not HTTP, and to each HTTP
// request. Both use the policy at that time. If a policy changes, connections that the new
// policy denies are closed.

// requires reports whether the client c has the TLS and the identity that the settings
// require for the port. It does not check the policy of the port.
func (in *Inbound) requires(port uint16, c *client) bool {
	return (c.id != "" || !in.RequireIdentity.Contains(port)) && (c.secure || !in.RequireTLS.Contains(port))
}

// permit returns the index of the first rule in authorizations that permits the client c.
// It returns -1 if no rule permits c, or if c lacks the TLS or identity that the settings
// require for the port.
func (in *Inbound) permit(port uint16, c *client, authorizations []authorization) int {
	if !in.requires(port, c) {
		return -1
	}
	for i := range authorizations {
		if authorizations[i].permits(c) {
			return i
		}
	}
	return -1
}

// policyKey is the context key of the *portPolicy that applies to a connection.
type policyKey struct{}

// withPolicy returns a server that adds the policy of the port to the context of each
// connection. For a new port, the server first waits for the policy of the controller,
// see [portPolicy.await].
func (in *Inbound) withPolicy(next tcplayer.Server) tcplayer.Server { return &withPolicy{next, in} }

// withPolicy is a server that adds the policy of the port to the context of each
// connection.
type withPolicy struct {
	tcplayer.Server
	in *Inbound
}

func (w *withPolicy) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	policy := w.in.policies.acquire(dst.Port())
	defer w.in.policies.release(policy)
	policy.await(ctx)
	return w.Server.Call(context.WithValue(ctx, policyKey{}, policy), conn)
}

func (w *withPolicy) Next() tcplayer.Server { return w.Server }

// Describe shows the name of the policy of each port.
func (w *withPolicy) Describe() layer.Node { return w.in.policies.describe() }

// byProtocol passes a connection to the server that the policy of its port requires. If the
// policy specifies HTTP, this is the field http. If the policy forwards the bytes in TLS,
// it is the field opaque. Otherwise it is a server that detects the protocol: the embedded
// Server, or the result of the function within if the policy has a different detection
// timeout.
type byProtocol struct {
	tcplayer.Server // detects the protocol
	within          func(timeout time.Duration) tcplayer.Server
	http, opaque    tcplayer.Server
}

func (b *byProtocol) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	p, ok := ctx.Value(policyKey{}).(*portPolicy)
	if !ok {
		return b.Server.Call(ctx, conn)
	}
	switch current := p.current.Load(); {
	case current.protocol == isHTTP:
		return b.http.Call(ctx, conn)
	case current.protocol == tlsOnly:
		return b.opaque.Call(ctx, conn)
	case current.detectTimeout > 0 && current.detectTimeout != p.in.DetectTimeout:
		return b.within(current.detectTimeout).Call(ctx, conn)
	}
	return b.Server.Call(ctx, conn)
}

func (b *byProtocol) Next() tcplayer.Server { return b.Server }

func (b *byProtocol) Describe() layer.Node { return layer.Node{Name: "protocol of the policy"} }

// protocolOf returns how the policy of a connection handles TLS and the protocol. ctx is
// the context of the connection. If ctx has no policy, both TLS and the protocol are
// detected.
func protocolOf(ctx context.Context) handling {
	if p, ok := ctx.Value(policyKey{}).(*portPolicy); ok {
		return p.current.Load().protocol
	}
	return detected
}

// isOpaque reports whether the policy marks the connection as opaque. TLS and the protocol
// are then not detected, because the server may speak first.
func (in *Inbound) isOpaque(ctx context.Context, _ net.Conn) bool { return protocolOf(ctx) == opaque }

// admission returns a server for connections that are not HTTP. The server rejects a
// connection that the policy denies. If the policy changes and then denies an open
// connection, the server resets this connection.
func (in *Inbound) admission(next tcplayer.Server) tcplayer.Server { return &admission{next, in} }

// admission is a server that passes the connections that the policy permits to the
// embedded Server.
type admission struct {
	tcplayer.Server
	in *Inbound
}

func (a *admission) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	ctx, c := withClient(ctx, conn)
	if err := a.in.Refuse(dst); err != nil {
		a.in.count(a.in.decided.tcp, dst, c, nil, meters.Denied)
		return tcplayer.ByteCount{}, forbidden(dst, err.Error())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	open := &openConn{dst: dst, client: c, cancel: cancel}
	if err := a.in.admit(ctx, c.policy, open); err != nil {
		return a.in.denied(dst, err).Call(ctx, conn)
	}
	defer c.policy.remove(open)
	return a.Server.Call(ctx, conn)
}

func (a *admission) Next() tcplayer.Server { return a.Server }

func (a *admission) Describe() layer.Node { return layer.Node{Name: "policy"} }

// denied returns a server that rejects a connection to dst with err, and shows the
// connection in tap.
func (in *Inbound) denied(dst netip.AddrPort, err error) tcplayer.Server {
	return tcplayer.Forward(in.tapConnections(dst)(layer.Func[tcplayer.Request, net.Conn](
		func(context.Context, tcplayer.Request) (net.Conn, error) { return nil, err })))
}

// admit returns an error if the argument policy denies the connection in the argument
// open. Otherwise it adds the connection to the policy, so that a later policy of the port
// can reset it.
func (in *Inbound) admit(ctx context.Context, policy *portPolicy, open *openConn) error {
	if policy == nil { // the connection did not pass withPolicy
		return unauthorized(open.dst, meters.Resource{})
	}
	p, i := policy.add(open)
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(decision(p, "", p.authorizations, i))
	}
	if i < 0 {
		in.count(in.decided.tcp, open.dst, open.client, p.refused, meters.Denied)
		in.logDecision(ctx, "connection denied", p.refused, open.client)
		return unauthorized(open.dst, p.resource)
	}
	in.count(in.decided.tcp, open.dst, open.client, p.permits[i], meters.Allowed)
	if p.authorizations[i].isAudit() {
		in.logDecision(ctx, "connection allowed", p.permits[i], open.client)
	}
	return nil
}

// unauthorized returns the error of a connection to dst that a policy denies. The argument
// server identifies the resource that specifies this policy.
func unauthorized(dst netip.AddrPort, server meters.Resource) error {
	return forbidden(dst, fmt.Sprintf("unauthorized connection on %s/%s", server.Kind, server.Name))
}

// forbidden returns the error of a connection or request to dst that is denied for the given reason.
func forbidden(dst netip.AddrPort, reason string) error {
	return &layer.Error{Layer: "policy", Endpoint: dst.String(), Err: &httplayer.StatusError{Code: http.StatusForbidden, Reason: reason}}
}

// count reports a decision of a policy to the callback counts, which adds it to the
// metrics. The other arguments describe the decision: c is the client, and permit
// identifies the rules that led to the outcome. It is nil if no rule was consulted.
func (in *Inbound) count(counts func(meters.Decision), dst netip.AddrPort, c *client, permit *meters.Permit, outcome meters.Outcome) {
	counts(meters.Decision{Target: dst, Client: in.metricsClient(*c), Permit: permit, Outcome: outcome})
}

// logDecision logs message, which describes a decision about the client c, at level info. p
// identifies the rules that led to the decision.
func (in *Inbound) logDecision(ctx context.Context, message string, p *meters.Permit, c *client) {
	if !in.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	in.Log.InfoContext(ctx, message, //nolint:sloglint // the messages are constants
		"server", resourceText(p.Server), "route", resourceText(p.Route), "authz", resourceText(p.Authz),
		"client_ip", c.addr, "client_id", c.id, "client_tls", c.secure)
}

func resourceText(r meters.Resource) string { return r.Group + "/" + r.Kind + "/" + r.Name }

// requestPolicy is a service that calls a function for each request:
// [Inbound.applyPolicy], or a function that denies the request. It is always ready,
// because only Call can determine the policy of a request.
type requestPolicy struct {
	layer.Func[*http.Request, *http.Response]
}

func (requestPolicy) Describe() layer.Node { return layer.Node{Name: "policy"} }

// applyPolicy sends a request to the application or rejects it, as the policy of the port
// requires at the time of the request.
func (in *Inbound) applyPolicy(ctx context.Context, req *http.Request) (*http.Response, error) {
	c := clientFromContext(ctx)
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	if err := in.Refuse(dst); err != nil {
		in.count(in.decided.http, dst, c, nil, meters.Denied)
		return nil, forbidden(dst, err.Error())
	}
	if c.policy == nil { // the connection did not pass withPolicy
		return nil, errUnauthorized
	}
	p := c.policy.current.Load()
	if p.requests == nil {
		return (&noRoute{in: in, server: p}).Call(ctx, req)
	}
	return p.requests.Call(ctx, req)
}

// The errors of denied requests. They have the text of linkerd's proxy, because other
// proxies receive the text in the header l5d-proxy-error.
var (
	errUnauthorized = &httplayer.StatusError{Code: http.StatusForbidden, Reason: "unauthorized request on route"}
	errNotFound     = &httplayer.StatusError{Code: http.StatusNotFound, GRPC: uint32(codes.NotFound), Reason: "no route found for request"}
)

// noRoute is the service of requests that match no route of the policy. It rejects them
// with 404.
type noRoute struct {
	httplayer.Service
	in     *Inbound
	server *serverPolicy
}

func (n *noRoute) Call(ctx context.Context, _ *http.Request) (*http.Response, error) {
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	n.in.count(n.in.decided.http, dst, clientFromContext(ctx), n.server.refused, meters.NoRoute)
	return nil, errNotFound
}

func (n *noRoute) Describe() layer.Node { return layer.Node{Name: "no route"} }

// routeAuthorizer is the service of the requests of one route. It rejects a request that
// no rule of the route permits. If the route has filters, the embedded Service applies
// them.
type routeAuthorizer struct {
	httplayer.Service
	in     *Inbound
	server *serverPolicy
	route  *routePolicy
}

// permitted is the context of a request while the filters of its route are applied. It
// stores the index of the rule that permits the request. After the filters,
// [permittedRequests] finds the *permitted by the context key permittedKey.
type permitted struct {
	reqctx.Wrapper
	by    *routeAuthorizer
	index int // of the rule that permits the request
}

type permittedKey struct{}

func (p *permitted) Value(key any) any {
	if key == (permittedKey{}) {
		return p
	}
	return p.Context.Value(key)
}

func (a *routeAuthorizer) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	c := clientFromContext(ctx)
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	i := a.in.permit(dst.Port(), c, a.route.authorizations)
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(decision(a.server, a.route.resource.Name, a.route.authorizations, i))
	}
	if i < 0 {
		a.in.count(a.in.decided.http, dst, c, a.route.denied, meters.Denied)
		a.in.logDecision(ctx, "request denied", a.route.denied, c)
		return a.route.deny.Call(ctx, req)
	}
	a.in.count(a.in.decided.http, dst, c, a.route.permits[i].Permit, meters.Allowed)
	if a.route.authorizations[i].isAudit() {
		a.in.logDecision(ctx, "request allowed", a.route.permits[i].Permit, c)
	}
	switch {
	case a.route.invalid != nil:
		return nil, &httplayer.StatusError{
			Code: http.StatusInternalServerError, Reason: "invalid server policy: " + a.route.invalid.Error(), Close: true,
		}
	case a.route.filtered:
		return a.Service.Call(&permitted{reqctx.Wrapper{Context: ctx}, a, i}, req)
	}
	return a.dispatch(ctx, req, i)
}

// decision returns a node that describes whether a policy permits a request or connection.
// The node names the server, the route and the rule. For a connection, route is "". i is
// the index of the rule in authorizations, or -1 if no rule permits the request or
// connection.
func decision(server *serverPolicy, route string, authorizations []authorization, i int) layer.Node {
	n := layer.Node{Name: "policy", State: layer.State{{Key: "server", Value: server.resource.Name}}}
	if route != "" {
		n.State = append(n.State, layer.Attr{Key: "route", Value: route})
	}
	by := "none"
	if i >= 0 {
		by = authorizations[i].resource.Name
	}
	n.State = append(n.State, layer.Attr{Key: "permitted_by", Value: by})
	return n
}

// deny returns a service that rejects all requests, and shows them in tap with the labels of
// the resources in permit.
func (in *Inbound) deny(permit *meters.Permit) httplayer.Service {
	labels := tap.WithDestination(netip.AddrPort{}, destinationLabels(permit))
	return tap.Layer(in.Taps, deniedAccessor{}, tap.Inbound, labels)(requestPolicy{
		func(context.Context, *http.Request) (*http.Response, error) { return nil, errUnauthorized },
	})
}

// deniedAccessor reads the destination and the labels of the client from the connection of a
// request, because one service rejects the requests of all clients.
type deniedAccessor struct{ httplayer.Accessor }

func (deniedAccessor) DestinationAddr(ctx context.Context, _ *http.Request) netip.AddrPort {
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	return dst
}

func (deniedAccessor) SourceLabels(req *http.Request) map[string]string {
	c := clientFromContext(req.Context())
	return sourceLabels(c.secure, c.id)
}

// dispatch sends a permitted request to the application, or rejects the request if it
// exceeds the rate limit of the port. i is the index of the rule that permits the request.
func (a *routeAuthorizer) dispatch(ctx context.Context, req *http.Request, i int) (*http.Response, error) {
	if a.server.limit != nil {
		c := clientFromContext(ctx)
		if permit, err := a.server.limit.take(c.id); err != nil {
			dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
			a.in.count(a.in.decided.http, dst, c, permit, meters.RateLimited)
			return nil, err
		}
	}
	return a.route.permits[i].to.Call(ctx, req)
}

func (a *routeAuthorizer) Next() httplayer.Service { return a.Service }

func (a *routeAuthorizer) Describe() layer.Node {
	return layer.Node{Name: "authorize", State: layer.State{{Key: "route", Value: a.route.resource.Name}}}
}

// permittedRequests is the service that receives requests after the filters of a route. It
// sends them to the application. It rejects a request that has not passed a
// [routeAuthorizer].
type permittedRequests struct{}

// Ready returns nil, because only Call can determine the service of a request.
func (permittedRequests) Ready(context.Context) error { return nil }

func (permittedRequests) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	p, ok := ctx.Value(permittedKey{}).(*permitted)
	if !ok {
		return nil, errUnauthorized
	}
	return p.by.dispatch(ctx, req, p.index)
}

func (permittedRequests) Describe() layer.Node { return layer.Node{Name: "permitted"} }

// isMeshed returns an error if the client of conn has no identity.
func isMeshed(conn net.Conn) error {
	if clientOf(conn).id == "" {
		return errors.New("a direct connection needs a client with an identity")
	}
	return nil
}

// isOwn returns an error if the original destination of conn is not an address of this
// pod. If INBOUND_IPS is empty, every address is allowed.
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

// serverPort returns the port of the application to which the connection of req was made.
// The cache of services has this port as key.
func serverPort(req tcplayer.Request) (netip.AddrPort, error) { return req.Server, nil }

// byHeader returns a server that forwards a connection to the port in its transport header.
// It rejects a connection if the header has a host name, because this proxy is not a
// gateway to other hosts.
func (in *Inbound) byHeader() tcplayer.Server {
	accepted := connections().With("policy", in.withPolicy).With("metrics", in.clientMetrics(false))
	opaque, http := accepted.Service(in.opaque), accepted.Service(in.http)
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
