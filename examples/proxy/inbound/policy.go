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

// This file applies a port's policy to each HTTP request, and to each connection that is not HTTP.
// Both use the current policy. If it changes, connections that the new policy denies are closed.

// requires reports whether c has the TLS and the identity that the settings require for the port.
// It does not check the port's policy.
func (in *Inbound) requires(port uint16, c *client) bool {
	return (c.id != "" || !in.RequireIdentity.Contains(port)) && (c.secure || !in.RequireTLS.Contains(port))
}

// permit returns the index of the first rule that permits c. It returns -1 if there is none, or if
// c lacks the TLS or identity that the settings require for the port.
func (in *Inbound) permit(port uint16, c *client, authorizations []authorization) int {
	// The settings apply before any rule, so that no policy can weaken them.
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

// policyKey is the context key for a connection's *portPolicy.
type policyKey struct{}

// withPolicy returns a server that adds the port's policy to each connection's context. At a new
// port, it first waits for the controller's policy, see [portPolicy.await].
func (in *Inbound) withPolicy(next tcplayer.Server) tcplayer.Server { return &withPolicy{next, in} }

// withPolicy adds the port's policy to each connection's context.
type withPolicy struct {
	tcplayer.Server
	in *Inbound
}

// Call finds the policy for the connection's original port, waits for it, and passes it on in ctx.
func (w *withPolicy) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	// The policy must not be removed while the connection is open.
	policy := w.in.policies.acquire(dst.Port())
	defer w.in.policies.release(policy)
	policy.await(ctx)
	return w.Server.Call(context.WithValue(ctx, policyKey{}, policy), conn)
}

func (w *withPolicy) Next() tcplayer.Server { return w.Server }

// Describe shows the name of each port's policy.
func (w *withPolicy) Describe() layer.Node { return w.in.policies.describe() }

// byProtocol passes a connection to the server for its policy's protocol: http for HTTP, and opaque
// if the bytes inside TLS are forwarded. Otherwise the protocol is detected by the embedded Server,
// or by withTimeout's result if the policy sets a different timeout.
type byProtocol struct {
	tcplayer.Server // detects the protocol
	withTimeout     func(timeout time.Duration) tcplayer.Server
	http, opaque    tcplayer.Server
}

// Call chooses the server by the protocol in the port's policy. Without a policy, it detects the protocol.
func (b *byProtocol) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	p, ok := ctx.Value(policyKey{}).(*portPolicy)
	if !ok {
		return b.Server.Call(ctx, conn)
	}
	// The order matters: a fixed protocol needs no detection, so its timeout is irrelevant.
	switch current := p.current.Load(); {
	case current.protocol == isHTTP:
		return b.http.Call(ctx, conn)
	case current.protocol == tlsOnly:
		return b.opaque.Call(ctx, conn)
	case current.detectTimeout > 0 && current.detectTimeout != p.in.DetectTimeout:
		return b.withTimeout(current.detectTimeout).Call(ctx, conn)
	}
	return b.Server.Call(ctx, conn)
}

func (b *byProtocol) Next() tcplayer.Server { return b.Server }

func (b *byProtocol) Describe() layer.Node { return layer.Node{Name: "protocol of the policy"} }

// protocolOf returns how the policy of ctx's connection handles TLS and the protocol. Without a
// policy, both are detected.
func protocolOf(ctx context.Context) handling {
	if p, ok := ctx.Value(policyKey{}).(*portPolicy); ok {
		return p.current.Load().protocol
	}
	return detected
}

// isOpaque reports whether the policy marks the connection as opaque. TLS and the protocol must not
// be detected then, because the server may speak first.
func (in *Inbound) isOpaque(ctx context.Context, _ net.Conn) bool { return protocolOf(ctx) == opaque }

// admission returns a server for connections that are not HTTP. It rejects those that the policy
// denies. If the policy changes and denies an open connection, it resets the connection.
func (in *Inbound) admission(next tcplayer.Server) tcplayer.Server { return &admission{next, in} }

// admission passes connections that the policy permits to the embedded Server.
type admission struct {
	tcplayer.Server
	in *Inbound
}

// Call admits a connection if the policy permits its client, and closes it when a later policy denies it.
func (a *admission) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	dst, _ := tcplayer.OriginalDst(conn)
	ctx, c := withClient(ctx, conn)
	// A connection to another cluster's target ends at this proxy, so its own address is not refused.
	if err := a.in.Refuse(dst); err != nil && c.target == "" {
		a.in.count(a.in.decided.tcp, dst, c, nil, meters.Denied)
		return tcplayer.ByteCount{}, forbidden(dst, err.Error())
	}
	// If a later policy denies the connection, the cause of ctx is the error with which it ends.
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

// denied returns a server that rejects a connection to dst with err, and shows it in tap.
func (in *Inbound) denied(dst netip.AddrPort, err error) tcplayer.Server {
	return tcplayer.Forward(in.tapConnections(dst)(layer.Func[tcplayer.Request, net.Conn](
		func(context.Context, tcplayer.Request) (net.Conn, error) { return nil, err })))
}

// admit returns an error if policy denies the connection. Otherwise it adds open to the policy, so
// that a later policy can reset the connection.
func (in *Inbound) admit(ctx context.Context, policy *portPolicy, open *openConn) error {
	if policy == nil { // the connection did not pass withPolicy
		return unauthorized(open.dst, meters.Resource{})
	}
	// add decides and remembers the connection in one step, so that no change of the policy is missed in between.
	p, i := policy.add(open)
	// The explanation is nil unless a tap asked for it.
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		explanation.Add(decision(p, "", p.authorizations, i))
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

// unauthorized returns the error for a connection to dst that a policy denies. server is the
// resource to which the policy belongs.
func unauthorized(dst netip.AddrPort, server meters.Resource) error {
	return forbidden(dst, fmt.Sprintf("unauthorized connection on %s/%s", server.Kind, server.Name))
}

// forbidden returns the error for a connection or request to dst that is denied.
func forbidden(dst netip.AddrPort, reason string) error {
	return &layer.Error{Layer: "policy", Endpoint: dst.String(), Err: &httplayer.StatusError{Code: http.StatusForbidden, Reason: reason}}
}

// count passes a decision about c to counts, which adds it to the metrics. permit identifies the
// rules that led to the outcome. It is nil if no rule was consulted.
func (in *Inbound) count(counts func(meters.Decision), dst netip.AddrPort, c *client, permit *meters.Permit, outcome meters.Outcome) {
	counts(meters.Decision{Target: dst, Client: in.metricsClient(*c), Permit: permit, Outcome: outcome})
}

// logDecision logs a decision about c, and the rules in p that led to it, at level info.
func (in *Inbound) logDecision(ctx context.Context, message string, p *meters.Permit, c *client) {
	if !in.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	in.Log.InfoContext(ctx, message, //nolint:sloglint // the messages are constants
		"server", resourceText(p.Server), "route", resourceText(p.Route), "authz", resourceText(p.Authz),
		"client_ip", c.addr, "client_id", c.id, "client_tls", c.secure)
}

func resourceText(r meters.Resource) string { return r.Group + "/" + r.Kind + "/" + r.Name }

// requestPolicy calls [Inbound.applyPolicy] or a function that denies the request. It is always
// ready, because only Call can tell which policy applies.
type requestPolicy struct {
	layer.Func[*http.Request, *http.Response]
}

func (requestPolicy) Describe() layer.Node { return layer.Node{Name: "policy"} }

// applyPolicy sends a request to the application or rejects it, according to the port's current
// policy.
func (in *Inbound) applyPolicy(ctx context.Context, req *http.Request) (*http.Response, error) {
	c := clientFromContext(ctx)
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	// A request to another cluster's target ends at this proxy, so its own address is not refused.
	if err := in.Refuse(dst); err != nil && c.target == "" {
		in.count(in.decided.http, dst, c, nil, meters.Denied)
		return nil, forbidden(dst, err.Error())
	}
	if c.policy == nil { // the connection did not pass withPolicy
		return nil, errUnauthorized
	}
	p := c.policy.current.Load()
	// A policy that does not serve HTTP has no routes.
	if p.requests == nil {
		return (&noRoute{in: in, server: p}).Call(ctx, req)
	}
	return p.requests.Call(ctx, req)
}

// Errors for denied requests. Other proxies receive the text in the header l5d-proxy-error, so it
// is that of linkerd's proxy.
var (
	errUnauthorized = &httplayer.StatusError{Code: http.StatusForbidden, Reason: "unauthorized request on route"}
	errNotFound     = &httplayer.StatusError{Code: http.StatusNotFound, GRPC: uint32(codes.NotFound), Reason: "no route found for request"}
)

// noRoute rejects requests that match none of the policy's routes with 404.
type noRoute struct {
	httplayer.Service
	in     *Inbound
	server *serverPolicy
}

// Call counts the request and returns the error for a request that matches no route.
func (n *noRoute) Call(ctx context.Context, _ *http.Request) (*http.Response, error) {
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	n.in.count(n.in.decided.http, dst, clientFromContext(ctx), n.server.refused, meters.NoRoute)
	return nil, errNotFound
}

func (n *noRoute) Describe() layer.Node { return layer.Node{Name: "no route"} }

// routeAuthorizer serves the requests of one route, and rejects those that no rule permits. The
// embedded Service applies the route's filters, if there are any.
type routeAuthorizer struct {
	httplayer.Service
	in     *Inbound
	server *serverPolicy
	route  *routePolicy
}

// permitted is a request's context while its route's filters are applied. It remembers the rule
// that permits the request. Its value for permittedKey is the *permitted, by which [permittedRequests] finds it.
type permitted struct {
	reqctx.Wrapper
	authorizer *routeAuthorizer
	client     *client
	index      int // of the rule that permits the request
}

// permittedKey is the key for which the method Value of a *permitted returns the *permitted.
type permittedKey struct{}

// Value returns p for permittedKey, and otherwise the value in the request's context.
func (p *permitted) Value(key any) any {
	if key == (permittedKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// Call decides whether one of the route's rules permits the request. It counts the decision, and logs
// it if the request is denied or the rule only audits. A permitted request is dispatched. If the route
// has filters, they come first, and then [permittedRequests] dispatches the request.
func (a *routeAuthorizer) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	c := clientFromContext(ctx)
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	i := a.in.permit(dst.Port(), c, a.route.authorizations)
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		explanation.Add(decision(a.server, a.route.resource.Name, a.route.authorizations, i))
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
	// The client is permitted. An invalid route still fails its requests, as linkerd's proxy does.
	switch {
	case a.route.invalid != nil:
		return nil, &httplayer.StatusError{
			Code: http.StatusInternalServerError, Reason: "invalid server policy: " + a.route.invalid.Error(), Close: true,
		}
	case a.route.filtered:
		// Filters only see the request, so permitted carries the decision past them in the context.
		return a.Service.Call(&permitted{reqctx.Wrapper{Context: ctx}, a, c, i}, req)
	}
	return a.dispatch(ctx, req, c, i)
}

// decision returns a node that explains a decision with its server, route and rule. route is "" for
// a connection. i is the index of the rule in authorizations, or -1 if there is none.
func decision(server *serverPolicy, route string, authorizations []authorization, i int) layer.Node {
	n := layer.Node{Name: "policy", State: layer.State{{Key: "server", Value: server.resource.Name}}}
	if route != "" {
		n.State = append(n.State, layer.Attr{Key: "route", Value: route})
	}
	rule := "none"
	if i >= 0 {
		rule = authorizations[i].resource.Name
	}
	n.State = append(n.State, layer.Attr{Key: "permitted_by", Value: rule})
	return n
}

// deny returns a service that rejects all requests, and shows them in tap with permit's labels.
func (in *Inbound) deny(permit *meters.Permit) httplayer.Service {
	labels := tap.WithDestination(netip.AddrPort{}, destinationLabels(permit))
	return tap.Layer(in.Taps, deniedAccessor{}, tap.Inbound, labels)(requestPolicy{
		func(context.Context, *http.Request) (*http.Response, error) { return nil, errUnauthorized },
	})
}

// deniedAccessor reads the destination and the labels of the client from the connection of a
// request, because one service rejects the requests of all clients.
type deniedAccessor struct{ httplayer.HTTP }

func (deniedAccessor) DestinationAddr(ctx context.Context, _ *http.Request) netip.AddrPort {
	dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
	return dst
}

func (deniedAccessor) SourceLabels(req *http.Request) map[string]string {
	c := clientFromContext(req.Context())
	return sourceLabels(c.secure, c.id)
}

// dispatch sends c's permitted request to the application or the gateway, unless it exceeds the
// port's rate limit. i is the index of the rule that permits it.
func (a *routeAuthorizer) dispatch(ctx context.Context, req *http.Request, c *client, i int) (*http.Response, error) {
	if a.server.limit != nil {
		if permit, err := a.server.limit.take(c.id); err != nil {
			dst, _ := tcplayer.OriginalDst(httplayer.ConnFromContext(ctx))
			a.in.count(a.in.decided.http, dst, c, permit, meters.RateLimited)
			return nil, err
		}
	}
	// The client requested a name in a transport header, so this proxy is its cluster's gateway.
	if c.target != "" {
		return a.in.toTarget(ctx, req, c)
	}
	return a.route.permits[i].service.Call(ctx, req)
}

func (a *routeAuthorizer) Next() httplayer.Service { return a.Service }

func (a *routeAuthorizer) Describe() layer.Node {
	return layer.Node{Name: "authorize", State: layer.State{{Key: "route", Value: a.route.resource.Name}}}
}

// permittedRequests receives requests after a route's filters, and sends them to the application.
// It rejects requests that have not passed a [routeAuthorizer].
type permittedRequests struct{}

// Ready returns nil, because only Call can tell which service a request needs.
func (permittedRequests) Ready(context.Context) error { return nil }

// Call dispatches a request that was permitted earlier. Any other one is unauthorized.
func (permittedRequests) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	p, ok := ctx.Value(permittedKey{}).(*permitted)
	if !ok {
		return nil, errUnauthorized
	}
	return p.authorizer.dispatch(ctx, req, p.client, p.index)
}

func (permittedRequests) Describe() layer.Node { return layer.Node{Name: "permitted"} }

// isMeshed returns an error if conn's client has no identity.
func isMeshed(conn net.Conn) error {
	if clientOf(conn).id == "" {
		return errors.New("a direct connection needs a client with an identity")
	}
	return nil
}

// isOwn returns an error if conn's original destination is not this pod's address. Without
// INBOUND_IPS, every address is allowed.
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

// serverPort returns the application's port to which req connects. It is the key in the cache of
// services.
func serverPort(req tcplayer.Request) (netip.AddrPort, error) { return req.Server, nil }

// byHeader returns a server that forwards a connection to the port in its transport header, or to
// the gateway if the header contains a name.
func (in *Inbound) byHeader() tcplayer.Server {
	count := in.Meters.TransportHeaders()
	// accepted checks nothing yet: it adds the port's policy to the context, and counts the client.
	accepted := connections().With("policy", in.withPolicy).With("metrics", in.clientMetrics(false)) // TLS has been terminated
	opaque := accepted.Service(in.opaque)
	http := accepted.Service(in.http)
	gateway := in.gateway()
	return layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		count(h, clientOf(conn).id)
		// A name asks for a service behind this gateway, and a header without one for a port of this pod.
		if h.Name != "" {
			return gateway.Call(ctx, gatewayConn(conn))
		}
		if err := in.isOwn(conn); err != nil {
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "transport", Err: err}
		}
		// Forwarded bytes need no detection, because the other proxy has told that they are opaque.
		if h.Protocol == tcplayer.Opaque {
			return opaque.Call(ctx, conn)
		}
		return http.Call(ctx, conn)
	})
}
