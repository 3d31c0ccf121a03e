package controller

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/linkerd/linkerd2-proxy-api/go/tls_route"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/internal/yamlfile"
)

// Values that the configuration file cannot set. Linkerd's policy controller sends the same ones, so a mesh behaves
// the same with this controller.
const (
	detectTimeout   = 10 * time.Second
	queueCapacity   = 100
	queueFailFast   = 3 * time.Second
	defaultRTT      = 30 * time.Millisecond
	rttDecay        = 10 * time.Second
	penaltyDecay    = 10 * time.Second
	maxRequestBytes = 64 << 10
	minRetryBackoff = 25 * time.Millisecond
	maxRetryBackoff = 250 * time.Millisecond

	defaultNamespace = "default" // for metadata that would otherwise lack a namespace
)

// Values for proxyProtocol, as in linkerd's Server. The default is unknown, which makes proxies
// detect the protocol.
const (
	protocolUnknown = "unknown"
	protocolHTTP1   = "HTTP/1"
	protocolHTTP2   = "HTTP/2"
	protocolGRPC    = "gRPC"
	protocolOpaque  = "opaque"
	protocolTLS     = "TLS"
)

// outboundRoutes are a destination's routes by kind, as API messages.
type outboundRoutes struct {
	http   []*outbound.HttpRoute
	grpc   []*outbound.GrpcRoute
	tls    []*outbound.TlsRoute
	opaque []*outbound.OpaqueRoute
}

// Values for trafficPolicy, as in linkerd's EgressNetwork.
const (
	allowTraffic = "Allow"
	denyTraffic  = "Deny"
)

// defaultPolicy returns the policy for a destination that configures none: it balances all
// traffic over t's endpoints. If opaque is true, connections are forwarded as bytes.
func defaultPolicy(t target, opaque bool) *outbound.OutboundPolicy {
	protocol := protocolUnknown
	if opaque {
		protocol = protocolOpaque
	}
	return policyMessage(t, protocol, outboundRoutes{}, ownBackend(t, nil), nil, allowTraffic)
}

// outboundPolicy is a policy while it is being converted, with what its routes need to know.
type outboundPolicy struct {
	target // the policy's destination

	own    *outbound.Backend // the destination's own endpoints
	load   *outbound.Backend_BalanceP2C_PenaltyPeakEwma_
	exists func(host string, port uint16) bool
}

// message converts y, the outbound policy for t. If opaque, which comes from the profile, is
// true, it overrides proxyProtocol. exists reports whether a backend's destination exists; the
// port is 0 if the reference does not have one.
func (y *policyYAML) message(t target, opaque bool, exists func(host string, port uint16) bool) *outbound.OutboundPolicy {
	protocol := y.ProxyProtocol
	if opaque {
		protocol = protocolOpaque
	}
	traffic := allowTraffic
	// For names, denying traffic makes no sense: they always have their own endpoints.
	if y.TrafficPolicy != nil {
		traffic = *y.TrafficPolicy
		if !t.ip {
			y.At.At("trafficPolicy").Failf("it is for IP addresses only: take it out")
		}
	}
	o := &outboundPolicy{target: t, load: y.LoadBiaser.message(), exists: exists}
	o.own = ownBackend(t, o.load)
	// Names are unique among all routes of the policy, so names is shared by the loops.
	names := make(map[string]string)
	var routes outboundRoutes
	for _, route := range y.HTTPRoutes {
		checkRoute(route.At, route.Name, len(route.Rules), names)
		routes.http = append(routes.http, o.http(route))
	}
	for _, route := range y.GRPCRoutes {
		checkRoute(route.At, route.Name, len(route.Rules), names)
		routes.grpc = append(routes.grpc, o.grpc(route))
	}
	for _, route := range y.TLSRoutes {
		checkStreamRoute(route, names)
		routes.tls = append(routes.tls, o.tls(route))
	}
	for _, route := range y.TCPRoutes {
		checkStreamRoute(route, names)
		routes.opaque = append(routes.opaque, o.tcp(route))
	}
	// The checks need the final protocol, which opaque may have changed.
	y.checkKinds(protocol)
	return policyMessage(t, protocol, routes, o.own, y.FailureAccrual.message(), traffic)
}

// checkRoute reports a route at v that has no rules or repeats a name. names maps each earlier
// name to its path.
func checkRoute(v yamlfile.Value, name string, rules int, names map[string]string) {
	unique(v.At("name"), name, names)
	if rules == 0 {
		v.At("rules").Failf("missing: want at least one rule")
	}
}

// checkStreamRoute checks a TLSRoute or TCPRoute. It also reports a second rule: nothing in a
// connection tells which rule applies, and linkerd's proxies would reject the whole policy.
func checkStreamRoute(y streamRouteYAML, names map[string]string) {
	checkRoute(y.At, y.Name, len(y.Rules), names)
	if len(y.Rules) > 1 {
		y.At.At("rules").Failf("want one rule in a TLSRoute or TCPRoute, not %d", len(y.Rules))
	}
}

// checkKinds reports kinds of routes that the protocol does not support. It also reports several
// kinds, because the API carries only one, and several TCPRoutes, because each matches every
// connection.
func (y *policyYAML) checkKinds(protocol string) {
	// Each protocol lists the kinds of routes that the API can carry for it.
	allowed := map[string][]string{
		protocolUnknown: {"httpRoutes", "grpcRoutes", "tlsRoutes", "tcpRoutes"}, protocolHTTP1: {"httpRoutes"},
		protocolHTTP2: {"httpRoutes", "grpcRoutes"}, protocolGRPC: {"grpcRoutes"},
		protocolOpaque: {"tcpRoutes"}, protocolTLS: {"tlsRoutes"},
	}[protocol]
	var present []string
	for _, kind := range []struct {
		name string
		n    int
	}{
		{"httpRoutes", len(y.HTTPRoutes)}, {"grpcRoutes", len(y.GRPCRoutes)},
		{"tlsRoutes", len(y.TLSRoutes)}, {"tcpRoutes", len(y.TCPRoutes)},
	} {
		if kind.n == 0 {
			continue
		}
		present = append(present, kind.name)
		if !slices.Contains(allowed, kind.name) {
			y.At.At(kind.name).Failf("the protocol %s does not have them: want %s", protocol, strings.Join(allowed, ", "))
		}
	}
	if len(present) > 1 {
		y.At.Failf("%s exclude each other: want one of them", strings.Join(present, " and "))
	}
	if len(y.TCPRoutes) > 1 {
		y.At.At("tcpRoutes").Failf("want one TCPRoute, which matches all connections, not %d", len(y.TCPRoutes))
	}
}

// policyMessage returns t's outbound policy as an API message. It contains a list of routes for
// every kind that the protocol may need; a missing list becomes a default route that sends all
// traffic to own, t's own backend. For an IP address, the default route is also added after the
// configured ones, and traffic decides whether it permits the rest.
//
// If the protocol is unknown, the routes imply it: TLS routes mean TLS, a TCP route means opaque,
// and gRPC routes mean gRPC, also with HTTP/2.
func policyMessage( //nolint:gocyclo // one case for each protocol and kind of route
	t target, protocol string, routes outboundRoutes, own *outbound.Backend, accrual *outbound.FailureAccrual, traffic string,
) *outbound.OutboundPolicy {
	// For an IP address, the default routes come last and decide about everything that no other route matches.
	defaults := defaultsOf(t, own, traffic)
	if routes.http == nil || t.ip {
		routes.http = append(routes.http, defaults.http...)
	}
	// The order of these steps matters: the first kind of route that is present decides an unknown protocol.
	if protocol == protocolUnknown && routes.opaque != nil {
		protocol = protocolOpaque
	}
	if routes.opaque == nil { // otherwise the TCP route matches all connections
		routes.opaque = defaults.opaque
	}
	// gRPC runs over HTTP/2, and only the gRPC protocol carries such routes.
	if protocol == protocolUnknown && routes.grpc != nil || protocol == protocolHTTP2 && routes.grpc != nil {
		protocol = protocolGRPC
	}
	if protocol == protocolUnknown && routes.tls != nil {
		protocol = protocolTLS
	}
	// The same routes serve both versions, because the client chooses one.
	http1 := &outbound.ProxyProtocol_Http1{Routes: routes.http, FailureAccrual: accrual}
	http2 := &outbound.ProxyProtocol_Http2{Routes: routes.http, FailureAccrual: accrual}
	opaque := &outbound.ProxyProtocol_Opaque{Routes: routes.opaque}
	msg := &outbound.ProxyProtocol{}
	switch protocol {
	case protocolHTTP1:
		msg.Kind = &outbound.ProxyProtocol_Http1_{Http1: http1}
	case protocolHTTP2:
		msg.Kind = &outbound.ProxyProtocol_Http2_{Http2: http2}
	case protocolGRPC:
		if routes.grpc == nil || t.ip {
			routes.grpc = append(routes.grpc, defaults.grpc...)
		}
		msg.Kind = &outbound.ProxyProtocol_Grpc_{Grpc: &outbound.ProxyProtocol_Grpc{Routes: routes.grpc, FailureAccrual: accrual}}
	case protocolTLS:
		if routes.tls == nil || t.ip {
			routes.tls = append(routes.tls, defaults.tls...)
		}
		msg.Kind = &outbound.ProxyProtocol_Tls_{Tls: &outbound.ProxyProtocol_Tls{Routes: routes.tls}}
	case protocolOpaque:
		msg.Kind = &outbound.ProxyProtocol_Opaque_{Opaque: opaque}
	default:
		msg.Kind = &outbound.ProxyProtocol_Detect_{Detect: &outbound.ProxyProtocol_Detect{
			Timeout: durationpb.New(detectTimeout), Opaque: opaque, Http1: http1, Http2: http2,
		}}
	}
	return &outbound.OutboundPolicy{Metadata: own.GetMetadata(), Protocol: msg}
}

// defaultsOf returns t's default route for each kind.
func defaultsOf(t target, local *outbound.Backend, traffic string) outboundRoutes {
	http := &outbound.HttpRoute_Rule{Matches: []*http_route.HttpRouteMatch{allPaths()}, Backends: httpBackends(local, nil)}
	grpc := &outbound.GrpcRoute_Rule{Backends: grpcBackends(local, nil)}
	tls := &outbound.TlsRoute_Rule{Backends: tlsBackends(local, nil)}
	opaque := &outbound.OpaqueRoute_Rule{Backends: opaqueBackends(local, nil)}
	// The names appear in the metrics of proxies, and are those of linkerd.
	names := [...]string{"http", "grpc", "tls", "opaq"}
	// Routes for an IP address allow or deny everything that no route of the policy matches.
	switch {
	case t.ip && traffic == denyTraffic:
		names = [...]string{"http-egress-deny", "grpc-egress-deny", "tls-egress-deny", "tcp-egress-deny"}
		const message = "traffic not allowed"
		http.Filters = []*outbound.HttpRoute_Filter{{Kind: &outbound.HttpRoute_Filter_FailureInjector{
			FailureInjector: &http_route.HttpFailureInjector{Status: 403, Message: message},
		}}}
		grpc.Filters = []*outbound.GrpcRoute_Filter{{Kind: &outbound.GrpcRoute_Filter_FailureInjector{
			FailureInjector: &grpc_route.GrpcFailureInjector{Code: uint32(codes.PermissionDenied), Message: message},
		}}}
		forbidden := &opaque_route.Forbidden{}
		tls.Filters = []*outbound.TlsRoute_Filter{{Kind: &outbound.TlsRoute_Filter_Forbidden{Forbidden: forbidden}}}
		opaque.Filters = []*outbound.OpaqueRoute_Filter{{Kind: &outbound.OpaqueRoute_Filter_Forbidden{Forbidden: forbidden}}}
	case t.ip:
		names = [...]string{"http-egress-allow", "grpc-egress-allow", "tls-egress-allow", "tcp-egress-allow"}
	}
	return outboundRoutes{
		http:   []*outbound.HttpRoute{{Metadata: defaultMetadata(names[0]), Rules: []*outbound.HttpRoute_Rule{http}}},
		grpc:   []*outbound.GrpcRoute{{Metadata: defaultMetadata(names[1]), Rules: []*outbound.GrpcRoute_Rule{grpc}}},
		tls:    []*outbound.TlsRoute{{Metadata: defaultMetadata(names[2]), Rules: []*outbound.TlsRoute_Rule{tls}}},
		opaque: []*outbound.OpaqueRoute{{Metadata: defaultMetadata(names[3]), Rules: []*outbound.OpaqueRoute_Rule{opaque}}},
	}
}

// ownBackend returns t's own backend. For a name it balances over the name's endpoints. For an IP
// address it forwards there, and its metadata names an EgressNetwork after the address, as
// linkerd does.
func ownBackend(t target, load *outbound.Backend_BalanceP2C_PenaltyPeakEwma_) *outbound.Backend {
	if !t.ip {
		return balancerTo(t, load)
	}
	// Such an object need not exist. Metrics show this name.
	m := resourceMetadata(policyGroup, "EgressNetwork", t.host)
	m.GetResource().Port = uint32(t.port)
	m.GetResource().Namespace = defaultNamespace
	return &outbound.Backend{
		Metadata: m, Queue: defaultQueue(), Kind: &outbound.Backend_Forward{Forward: &destination.WeightedAddr{
			Addr: &net.TcpAddress{Ip: wire.FromIP(netip.MustParseAddr(t.host)), Port: uint32(t.port)}, Weight: 1,
		}},
	}
}

// serviceMetadata returns metadata that identifies t's Service: name web and namespace shop for
// web.shop.svc.cluster.local. Any other host becomes the name as it is, in defaultNamespace.
func serviceMetadata(t target) *meta.Metadata {
	m := resourceMetadata("core", "Service", t.host)
	m.GetResource().Port = uint32(t.port)
	m.GetResource().Namespace = defaultNamespace
	// The fourth part is the cluster domain, which is not needed.
	if labels := strings.SplitN(t.host, ".", 4); len(labels) > 2 && labels[2] == "svc" {
		m.GetResource().Name = labels[0]
		m.GetResource().Namespace = labels[1]
	}
	return m
}

// routeMetadata returns metadata for a route. The route is placed in the namespace of its
// destination, whose backend is local.
func routeMetadata(local *outbound.Backend, kind, name string) *meta.Metadata {
	m := resourceMetadata(gatewayGroup, kind, name)
	m.GetResource().Namespace = local.GetMetadata().GetResource().GetNamespace()
	return m
}

// balancerTo returns a backend that balances over t's endpoints. load configures how it measures
// load; nil means peak EWMA with linkerd's defaults.
func balancerTo(t target, load *outbound.Backend_BalanceP2C_PenaltyPeakEwma_) *outbound.Backend {
	b := &outbound.Backend_BalanceP2C{
		Discovery: &outbound.Backend_EndpointDiscovery{Kind: &outbound.Backend_EndpointDiscovery_Dst{
			Dst: &outbound.Backend_EndpointDiscovery_DestinationGet{Path: t.String()},
		}},
		Load: &outbound.Backend_BalanceP2C_PeakEwma_{PeakEwma: &outbound.Backend_BalanceP2C_PeakEwma{
			DefaultRtt: durationpb.New(defaultRTT), Decay: durationpb.New(rttDecay),
		}},
	}
	// A load biaser replaces peak EWMA.
	if load != nil {
		b.Load = load
	}
	return &outbound.Backend{
		Metadata: serviceMetadata(t), Kind: &outbound.Backend_Balancer{Balancer: b}, Queue: defaultQueue(),
	}
}

// defaultQueue configures the queue in front of a backend.
func defaultQueue() *outbound.Queue {
	return &outbound.Queue{Capacity: queueCapacity, FailfastTimeout: durationpb.New(queueFailFast)}
}

// http converts a destination's HTTPRoute. A rule without backendRefs uses the destination's own
// endpoints.
func (o *outboundPolicy) http(y policyRouteYAML[httpMatchYAML]) *outbound.HttpRoute {
	checkNoAuthorizations(y.At, len(y.Authorizations))
	route := &outbound.HttpRoute{Metadata: routeMetadata(o.own, "HTTPRoute", y.Name), Hosts: hostMatches(y.At.At("hostnames"), y.Hostnames)}
	for _, rule := range y.Rules {
		msg := &outbound.HttpRoute_Rule{
			Matches:  httpMatches(rule.Matches),
			Filters:  httpFilters(filters(rule.Filters, requestFilter, responseFilter, redirectFilter)),
			Backends: httpBackends(o.own, o.backends(rule.BackendRefs, requestFilter, responseFilter, redirectFilter)),
			Timeouts: rule.Timeouts.message(),
		}
		// Old proxies read only this field.
		msg.RequestTimeout = msg.GetTimeouts().GetRequest() //nolint:staticcheck // for old proxies
		if y := rule.Retry; y != nil {
			msg.Retry = &outbound.HttpRoute_Retry{
				MaxRetries: y.Limit, MaxRequestBytes: maxRequestBytes, Timeout: optional(y.Timeout),
				Backoff: retryBackoff(), Conditions: &outbound.HttpRoute_Retry_Conditions{StatusRanges: y.statusRanges()},
			}
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// grpc converts a destination's GRPCRoute. A rule without backendRefs uses the destination's own
// endpoints.
func (o *outboundPolicy) grpc(y policyRouteYAML[grpcMatchYAML]) *outbound.GrpcRoute {
	checkNoAuthorizations(y.At, len(y.Authorizations))
	route := &outbound.GrpcRoute{Metadata: routeMetadata(o.own, "GRPCRoute", y.Name), Hosts: hostMatches(y.At.At("hostnames"), y.Hostnames)}
	for _, rule := range y.Rules {
		msg := &outbound.GrpcRoute_Rule{
			Matches:  grpcMatches(rule.Matches),
			Filters:  grpcFilters(filters(rule.Filters, requestFilter)),
			Backends: grpcBackends(o.own, o.backends(rule.BackendRefs, requestFilter)),
			Timeouts: rule.Timeouts.message(),
		}
		msg.RequestTimeout = msg.GetTimeouts().GetRequest() //nolint:staticcheck // for old proxies
		if y := rule.Retry; y != nil {
			msg.Retry = &outbound.GrpcRoute_Retry{
				MaxRetries: y.Limit, MaxRequestBytes: maxRequestBytes, Timeout: optional(y.Timeout),
				Backoff: retryBackoff(), Conditions: y.grpcConditions(),
			}
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// tls converts a destination's TLSRoute. A rule without backendRefs uses the destination's own
// endpoints.
func (o *outboundPolicy) tls(y streamRouteYAML) *outbound.TlsRoute {
	route := &outbound.TlsRoute{Metadata: routeMetadata(o.own, "TLSRoute", y.Name)}
	for _, host := range hostMatches(y.At.At("hostnames"), y.Hostnames) {
		// TLS routes match the server name by the same rules as hosts.
		sni := &tls_route.SniMatch{Match: &tls_route.SniMatch_Exact{Exact: host.GetExact()}}
		if s := host.GetSuffix(); s != nil {
			sni.Match = &tls_route.SniMatch_Suffix_{Suffix: &tls_route.SniMatch_Suffix{ReverseLabels: s.GetReverseLabels()}}
		}
		route.Snis = append(route.Snis, sni)
	}
	for _, rule := range y.Rules {
		route.Rules = append(route.Rules, &outbound.TlsRoute_Rule{Backends: tlsBackends(o.own, o.backends(rule.BackendRefs))})
	}
	return route
}

// tcp converts a destination's TCPRoute. A rule without backendRefs uses the destination's own
// endpoints.
func (o *outboundPolicy) tcp(y streamRouteYAML) *outbound.OpaqueRoute {
	if len(y.Hostnames) > 0 {
		y.At.At("hostnames").Failf("a TCPRoute has no hostnames: take them out")
	}
	route := &outbound.OpaqueRoute{Metadata: routeMetadata(o.own, "TCPRoute", y.Name)}
	for _, rule := range y.Rules {
		route.Rules = append(route.Rules, &outbound.OpaqueRoute_Rule{Backends: opaqueBackends(o.own, o.backends(rule.BackendRefs))})
	}
	return route
}

// checkNoAuthorizations reports a destination's route that has n authorization policies, because
// only servers' routes may have any.
func checkNoAuthorizations(route yamlfile.Value, n int) {
	if n > 0 {
		route.At("authorizationPolicies").Failf("they are for routes of servers only: take them out")
	}
}

// message converts a rule's timeouts. backendRequest becomes the API's response timeout, which
// runs from the end of the request to the end of the response.
func (y *timeoutsYAML) message() *http_route.Timeouts {
	if y == nil {
		return nil
	}
	return &http_route.Timeouts{Request: optional(y.Request), Response: optional(y.Backend), Idle: optional(y.Idle)}
}

// optional returns d as an API message, or nil if it is 0.
func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// retryBackoff returns the backoff between a request's attempts, which grows from minRetryBackoff
// to maxRetryBackoff. Jitter may double it.
func retryBackoff() *outbound.ExponentialBackoff {
	return &outbound.ExponentialBackoff{
		MinBackoff: durationpb.New(minRetryBackoff), MaxBackoff: durationpb.New(maxRetryBackoff), JitterRatio: 1,
	}
}

// statusRanges converts a retry's conditions. As in the annotation retry.linkerd.io/http, each is
// 5xx, gateway-error, a status such as 503, or a range such as 500-504.
func (y *retryYAML) statusRanges() []*outbound.HttpRoute_Retry_Conditions_StatusRange {
	ranges := make([]*outbound.HttpRoute_Retry_Conditions_StatusRange, 0, len(y.Conditions))
	if len(y.Conditions) == 0 {
		y.At.At("conditions").Failf("want at least one condition, such as 5xx")
	}
	for i, condition := range y.Conditions {
		// If condition is a name, low and high are replaced below.
		low, high, isRange := strings.Cut(condition, "-")
		switch {
		case condition == "5xx":
			low = "500"
			high = "599"
		case condition == "gateway-error":
			low = "502"
			high = "504"
		case !isRange:
			high = low
		}
		start, err1 := strconv.ParseUint(low, 10, 32)
		end, err2 := strconv.ParseUint(high, 10, 32)
		// A retry of a response that is no failure would make no sense.
		if err1 != nil || err2 != nil || start < 400 || end > 599 || start > end {
			y.At.At("conditions").Item(i).Rejectf(condition, "want 5xx, gateway-error, a status or a range within 400-599")
		}
		ranges = append(ranges, &outbound.HttpRoute_Retry_Conditions_StatusRange{Start: uint32(start), End: uint32(end)})
	}
	return ranges
}

// grpcConditions converts a gRPC retry's conditions, which are status names such as unavailable,
// as in the annotation retry.linkerd.io/grpc.
func (y *retryYAML) grpcConditions() *outbound.GrpcRoute_Retry_Conditions {
	c := &outbound.GrpcRoute_Retry_Conditions{}
	if len(y.Conditions) == 0 {
		y.At.At("conditions").Failf("want at least one condition, such as unavailable")
	}
	// Each name sets a field of the message, whose spelling is that of linkerd's API.
	for i, condition := range y.Conditions {
		switch condition {
		case "cancelled":
			c.Cancelled = true
		case "deadline-exceeded":
			c.DeadineExceeded = true
		case "resource-exhausted":
			c.ResourceExhausted = true
		case "internal":
			c.Internal = true
		case "unavailable":
			c.Unavailable = true
		default:
			const want = "want cancelled, deadline-exceeded, resource-exhausted, internal or unavailable"
			y.At.At("conditions").Item(i).Rejectf(condition, want)
		}
	}
	return c
}

// message converts failure accrual. A nil y stays nil.
func (y *accrualYAML) message() *outbound.FailureAccrual {
	if y == nil {
		return nil
	}
	// The message is still built, because the error prevents its use.
	if y.MinPenalty > y.MaxPenalty {
		y.At.At("minPenalty").Rejectf(y.MinPenalty, "want at most maxPenalty, %v", y.MaxPenalty)
	}
	backoff := &outbound.ExponentialBackoff{
		MinBackoff: durationpb.New(y.MinPenalty), MaxBackoff: durationpb.New(y.MaxPenalty), JitterRatio: float32(y.Jitter),
	}
	msg := &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_ConsecutiveFailures_{
		ConsecutiveFailures: &outbound.FailureAccrual_ConsecutiveFailures{MaxFailures: y.Failures, Backoff: backoff},
	}}
	// A threshold selects the unified breaker, which also counts consecutive failures.
	if y.Threshold != nil {
		msg.Kind = &outbound.FailureAccrual_Unified_{Unified: &outbound.FailureAccrual_Unified{
			// 10 s and 5 requests are linkerd's defaults, which the file may override below.
			SuccessRateThreshold: *y.Threshold, Decay: durationpb.New(10 * time.Second),
			MinRequests: 5, MaxConsecutiveFailures: y.Failures, Backoff: backoff,
		}}
		if y.Window != nil {
			msg.GetUnified().Decay = durationpb.New(*y.Window)
		}
		if y.Requests != nil {
			msg.GetUnified().MinRequests = *y.Requests
		}
	} else if y.Window != nil || y.Requests != nil {
		y.At.At("successRateThreshold").Failf("missing: successRateWindow and successRateMinRequests require it")
	}
	if y.MinReady != nil {
		msg.Ejection = &outbound.EjectionConfig{MinReadyEndpoints: *y.MinReady}
	}
	return msg
}

// message converts the load biaser. A nil y stays nil.
func (y *biaserYAML) message() *outbound.Backend_BalanceP2C_PenaltyPeakEwma_ {
	if y == nil {
		return nil
	}
	return &outbound.Backend_BalanceP2C_PenaltyPeakEwma_{PenaltyPeakEwma: &outbound.Backend_BalanceP2C_PenaltyPeakEwma{
		DefaultRtt: durationpb.New(defaultRTT), Decay: durationpb.New(rttDecay), PenaltyDecay: durationpb.New(penaltyDecay),
		Penalty: durationpb.New(y.Penalty), MaxRetryAfter: durationpb.New(y.MaxRetryAfter),
	}}
}
