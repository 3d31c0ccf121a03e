package controller

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/linkerd/linkerd2-proxy-api/go/tls_route"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Values in messages of the API that the configuration file cannot set. Linkerd's policy
// controller sends the same values.
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
)

// The values of the field proxyProtocol, as in a Server of linkerd. The default is unknown,
// which means that proxies detect the protocol.
const (
	protocolUnknown = "unknown"
	protocolHTTP1   = "HTTP/1"
	protocolHTTP2   = "HTTP/2"
	protocolGRPC    = "gRPC"
	protocolOpaque  = "opaque"
	protocolTLS     = "TLS"
)

// outboundRoutes are the routes of a destination, by kind, in messages of the API.
type outboundRoutes struct {
	http   []*outbound.HttpRoute
	grpc   []*outbound.GrpcRoute
	tls    []*outbound.TlsRoute
	opaque []*outbound.OpaqueRoute
}

// defaultPolicy returns the policy of a destination for which none is configured. It
// balances all traffic over the endpoints of t. If opaque is true, connections are
// forwarded as bytes.
func defaultPolicy(t target, opaque bool) *outbound.OutboundPolicy {
	protocol := protocolUnknown
	if opaque {
		protocol = protocolOpaque
	}
	return policyMessage(t, protocol, outboundRoutes{}, balancerTo(t, nil), nil)
}

// policy converts the outbound policy of the destination t. It returns nil if y is nil,
// because the destination then has the default policy. The argument opaque is the field
// opaque of the profile. If it is true, the protocol is opaque, and proxyProtocol of y has
// no effect.
func (r *reader) policy(t target, y *policyYAML, opaque bool) *outbound.OutboundPolicy {
	if y == nil {
		return nil
	}
	protocol := r.oneOf("proxyProtocol", y.ProxyProtocol,
		protocolUnknown, protocolHTTP1, protocolHTTP2, protocolGRPC, protocolOpaque, protocolTLS)
	if opaque {
		protocol = protocolOpaque
	}
	own := balancerTo(t, r.biaser(y.LoadBiaser))
	accrual := r.accrual(y.FailureAccrual)
	first := make(map[string]int)
	var routes outboundRoutes
	for _, route := range y.HTTPRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), first)
		routes.http = append(routes.http, r.outboundHTTP(route, own))
	}
	for _, route := range y.GRPCRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), first)
		routes.grpc = append(routes.grpc, r.outboundGRPC(route, own))
	}
	for _, route := range y.TLSRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), first)
		routes.tls = append(routes.tls, r.outboundTLS(route, own))
	}
	for _, route := range y.TCPRoutes {
		r.policyRoute(route.At, route.Name, len(route.Rules), first)
		routes.opaque = append(routes.opaque, r.outboundTCP(route, own))
	}
	r.oneKind(y, protocol)
	return policyMessage(t, protocol, routes, own, accrual)
}

// policyRoute checks a route with the given name and number of rules. It adds an error if the route
// lacks a name or rules, or has the name of a previous route. The argument at is the line of the
// route. The map first has the line of each previous name.
func (r *reader) policyRoute(at line, name text, rules int, first map[string]int) {
	r.named("route", at, name, first)
	if rules == 0 {
		r.missing(at.n, errNoRules.Error())
	}
}

// oneKind adds an error for routes of a kind that the protocol does not allow. It also adds
// an error if there are routes of several kinds, because a policy contains the routes of
// one kind.
func (r *reader) oneKind(y *policyYAML, protocol string) {
	allowed := map[string][]string{
		protocolUnknown: {"httpRoutes", "grpcRoutes", "tlsRoutes", "tcpRoutes"}, protocolHTTP1: {"httpRoutes"},
		protocolHTTP2: {"httpRoutes", "grpcRoutes"}, protocolGRPC: {"grpcRoutes"},
		protocolOpaque: {"tcpRoutes"}, protocolTLS: {"tlsRoutes"},
	}[protocol]
	var given []string
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
		given = append(given, kind.name)
		if !slices.Contains(allowed, kind.name) {
			r.failf(y.At.n, "protocol %s has no %s; there are %s", protocol, kind.name, strings.Join(allowed, ", "))
		}
	}
	if len(given) > 1 {
		r.failf(y.At.n, "%s exclude each other", strings.Join(given, " and "))
	}
}

// policyMessage returns the outbound policy of t as a message of the API. For each kind of route
// that the protocol uses, the message has the routes in the argument routes, or else a default
// route. The default route sends all traffic to own, the backend with the endpoints of t. TLS
// routes change the protocol from unknown to TLS. gRPC routes change it from unknown or HTTP/2 to
// gRPC.
func policyMessage(
	t target, protocol string, routes outboundRoutes, own *outbound.Backend, accrual *outbound.FailureAccrual,
) *outbound.OutboundPolicy {
	if routes.http == nil {
		routes.http = []*outbound.HttpRoute{{
			Metadata: defaultMetadata("http"),
			Rules:    []*outbound.HttpRoute_Rule{{Matches: []*http_route.HttpRouteMatch{allPaths()}, Backends: httpBackends(own, nil)}},
		}}
	}
	if routes.opaque == nil {
		routes.opaque = []*outbound.OpaqueRoute{{
			Metadata: defaultMetadata("opaq"), Rules: []*outbound.OpaqueRoute_Rule{{Backends: opaqueBackends(own, nil)}},
		}}
	}
	if protocol == protocolUnknown && routes.grpc != nil || protocol == protocolHTTP2 && routes.grpc != nil {
		protocol = protocolGRPC
	}
	if protocol == protocolUnknown && routes.tls != nil {
		protocol = protocolTLS
	}
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
		if routes.grpc == nil {
			routes.grpc = []*outbound.GrpcRoute{{
				Metadata: defaultMetadata("grpc"), Rules: []*outbound.GrpcRoute_Rule{{Backends: grpcBackends(own, nil)}},
			}}
		}
		msg.Kind = &outbound.ProxyProtocol_Grpc_{Grpc: &outbound.ProxyProtocol_Grpc{Routes: routes.grpc, FailureAccrual: accrual}}
	case protocolTLS:
		if routes.tls == nil {
			routes.tls = []*outbound.TlsRoute{{
				Metadata: defaultMetadata("tls"), Rules: []*outbound.TlsRoute_Rule{{Backends: tlsBackends(own, nil)}},
			}}
		}
		msg.Kind = &outbound.ProxyProtocol_Tls_{Tls: &outbound.ProxyProtocol_Tls{Routes: routes.tls}}
	case protocolOpaque:
		msg.Kind = &outbound.ProxyProtocol_Opaque_{Opaque: opaque}
	default:
		msg.Kind = &outbound.ProxyProtocol_Detect_{Detect: &outbound.ProxyProtocol_Detect{
			Timeout: durationpb.New(detectTimeout), Opaque: opaque, Http1: http1, Http2: http2,
		}}
	}
	return &outbound.OutboundPolicy{Metadata: serviceMetadata(t), Protocol: msg}
}

// serviceMetadata returns metadata that identifies the Service of t. For the host
// web.default.svc.cluster.local, it has the name web and the namespace default. For a host
// of another form, it has the whole host as the name and no namespace.
func serviceMetadata(t target) *meta.Metadata {
	m := resourceMetadata("core", "Service", t.host)
	m.GetResource().Port = uint32(t.port)
	if labels := strings.SplitN(t.host, ".", 4); len(labels) > 2 && labels[2] == "svc" {
		m.GetResource().Name, m.GetResource().Namespace = labels[0], labels[1]
	}
	return m
}

// balancerTo returns a backend that balances over the endpoints of t. The argument load
// configures how the balancer measures the load of endpoints. If it is nil, the balancer
// uses peak EWMA with the defaults of linkerd.
func balancerTo(t target, load *outbound.Backend_BalanceP2C_PenaltyPeakEwma_) *outbound.Backend {
	b := &outbound.Backend_BalanceP2C{
		Discovery: &outbound.Backend_EndpointDiscovery{Kind: &outbound.Backend_EndpointDiscovery_Dst{
			Dst: &outbound.Backend_EndpointDiscovery_DestinationGet{Path: t.String()},
		}},
		Load: &outbound.Backend_BalanceP2C_PeakEwma_{PeakEwma: &outbound.Backend_BalanceP2C_PeakEwma{
			DefaultRtt: durationpb.New(defaultRTT), Decay: durationpb.New(rttDecay),
		}},
	}
	if load != nil {
		b.Load = load
	}
	return &outbound.Backend{
		Metadata: serviceMetadata(t), Kind: &outbound.Backend_Balancer{Balancer: b}, Queue: defaultQueue(),
	}
}

// defaultQueue returns the configuration of the queue in front of a backend.
func defaultQueue() *outbound.Queue {
	return &outbound.Queue{Capacity: queueCapacity, FailfastTimeout: durationpb.New(queueFailFast)}
}

// outboundHTTP converts an HTTPRoute of a destination. A rule without backendRefs sends
// requests to the backend own, the endpoints of the destination itself.
func (r *reader) outboundHTTP(y policyRouteYAML[httpMatchYAML], own *outbound.Backend) *outbound.HttpRoute {
	r.noAuthorizations(y.Authorizations)
	route := &outbound.HttpRoute{Metadata: resourceMetadata(gatewayGroup, "HTTPRoute", y.Name.value), Hosts: r.hostnames(y.Hostnames)}
	for _, rule := range y.Rules {
		msg := &outbound.HttpRoute_Rule{
			Matches:  r.httpMatches(rule.Matches),
			Filters:  httpFilters(r.filters(rule.Filters, requestFilter, responseFilter, redirectFilter)),
			Backends: httpBackends(own, r.backends(rule.BackendRefs, requestFilter, responseFilter, redirectFilter)),
			Timeouts: r.timeouts(rule.Timeouts),
		}
		msg.RequestTimeout = msg.GetTimeouts().GetResponse() //nolint:staticcheck // for old proxies
		if y := rule.Retry; y != nil {
			ranges := r.statusRanges(*y)
			msg.Retry = &outbound.HttpRoute_Retry{
				MaxRetries: r.retryLimit(*y), MaxRequestBytes: maxRequestBytes, Timeout: r.positive("timeout", y.Timeout),
				Backoff: retryBackoff(), Conditions: &outbound.HttpRoute_Retry_Conditions{StatusRanges: ranges},
			}
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// outboundGRPC converts a GRPCRoute of a destination. A rule without backendRefs sends
// calls to the backend own, the endpoints of the destination itself.
func (r *reader) outboundGRPC(y policyRouteYAML[grpcMatchYAML], own *outbound.Backend) *outbound.GrpcRoute {
	r.noAuthorizations(y.Authorizations)
	route := &outbound.GrpcRoute{Metadata: resourceMetadata(gatewayGroup, "GRPCRoute", y.Name.value), Hosts: r.hostnames(y.Hostnames)}
	for _, rule := range y.Rules {
		msg := &outbound.GrpcRoute_Rule{
			Matches:  r.grpcMatches(rule.Matches),
			Filters:  grpcFilters(r.filters(rule.Filters, requestFilter)),
			Backends: grpcBackends(own, r.backends(rule.BackendRefs, requestFilter)),
			Timeouts: r.timeouts(rule.Timeouts),
		}
		msg.RequestTimeout = msg.GetTimeouts().GetResponse() //nolint:staticcheck // for old proxies
		if y := rule.Retry; y != nil {
			conditions := r.grpcConditions(*y)
			msg.Retry = &outbound.GrpcRoute_Retry{
				MaxRetries: r.retryLimit(*y), MaxRequestBytes: maxRequestBytes, Timeout: r.positive("timeout", y.Timeout),
				Backoff: retryBackoff(), Conditions: conditions,
			}
		}
		route.Rules = append(route.Rules, msg)
	}
	return route
}

// outboundTLS converts a TLSRoute of a destination. A rule without backendRefs sends
// connections to the backend own, the endpoints of the destination itself.
func (r *reader) outboundTLS(y streamRouteYAML, own *outbound.Backend) *outbound.TlsRoute {
	route := &outbound.TlsRoute{Metadata: resourceMetadata(gatewayGroup, "TLSRoute", y.Name.value)}
	for _, host := range r.hostnames(y.Hostnames) {
		sni := &tls_route.SniMatch{Match: &tls_route.SniMatch_Exact{Exact: host.GetExact()}}
		if s := host.GetSuffix(); s != nil {
			sni.Match = &tls_route.SniMatch_Suffix_{Suffix: &tls_route.SniMatch_Suffix{ReverseLabels: s.GetReverseLabels()}}
		}
		route.Snis = append(route.Snis, sni)
	}
	for _, rule := range y.Rules {
		route.Rules = append(route.Rules, &outbound.TlsRoute_Rule{Backends: tlsBackends(own, r.backends(rule.BackendRefs))})
	}
	return route
}

// outboundTCP converts a TCPRoute of a destination. A rule without backendRefs sends
// connections to the backend own, the endpoints of the destination itself.
func (r *reader) outboundTCP(y streamRouteYAML, own *outbound.Backend) *outbound.OpaqueRoute {
	if len(y.Hostnames) > 0 {
		r.failf(y.At.n, "a TCPRoute has no hostnames")
	}
	route := &outbound.OpaqueRoute{Metadata: resourceMetadata(gatewayGroup, "TCPRoute", y.Name.value)}
	for _, rule := range y.Rules {
		route.Rules = append(route.Rules, &outbound.OpaqueRoute_Rule{Backends: opaqueBackends(own, r.backends(rule.BackendRefs))})
	}
	return route
}

// noAuthorizations adds an error for each authorization policy of a route of a destination,
// because only routes of servers may have authorization policies.
func (r *reader) noAuthorizations(list []authorizationYAML) {
	for _, y := range list {
		r.failf(y.At.n, "authorizationPolicies are for servers only")
	}
}

// timeouts converts the timeouts of a rule. The field backendRequest becomes the response
// timeout of the API, which runs from the end of the request to the end of the response.
func (r *reader) timeouts(y *timeoutsYAML) *http_route.Timeouts {
	if y == nil {
		return nil
	}
	return &http_route.Timeouts{
		Request: r.positive("request", y.Request), Response: r.positive("backendRequest", y.Backend), Idle: r.positive("idle", y.Idle),
	}
}

// positive parses t, the value of the field with the given name. The value is a duration of
// more than 0. positive returns nil if the field is missing.
func (r *reader) positive(name string, t text) *durationpb.Duration {
	if !t.given() {
		return nil
	}
	d := r.duration(name, t)
	if d <= 0 {
		r.failf(t.line, "%s %v: want more than 0, or leave it out", name, d)
	}
	return durationpb.New(d)
}

// orDefault parses t, the value of the field with the given name. The value is a duration of
// more than 0. If the field is missing, orDefault returns the argument otherwise.
func (r *reader) orDefault(name string, t text, otherwise time.Duration) *durationpb.Duration {
	if d := r.positive(name, t); d != nil {
		return d
	}
	return durationpb.New(otherwise)
}

// retryBackoff returns the backoff between the attempts of a request. It grows from
// minRetryBackoff to maxRetryBackoff. The jitter may double a backoff.
func retryBackoff() *outbound.ExponentialBackoff {
	return &outbound.ExponentialBackoff{
		MinBackoff: durationpb.New(minRetryBackoff), MaxBackoff: durationpb.New(maxRetryBackoff), JitterRatio: 1,
	}
}

// retryLimit returns the maximum number of retries of a request. If the field is missing,
// it is 1.
func (r *reader) retryLimit(y retryYAML) uint32 {
	if !y.Limit.given() {
		return 1
	}
	n := r.number("limit", y.Limit)
	if n == 0 || n > math.MaxUint16 {
		r.failf(y.Limit.line, "limit %s must be from 1 to %d", y.Limit.value, math.MaxUint16)
	}
	return n
}

// statusRanges converts the conditions of a retry to ranges of statuses. A condition is
// 5xx, gateway-error, a status such as 503 or a range such as 500-504, as in the annotation
// retry.linkerd.io/http.
func (r *reader) statusRanges(y retryYAML) []*outbound.HttpRoute_Retry_Conditions_StatusRange {
	ranges := make([]*outbound.HttpRoute_Retry_Conditions_StatusRange, 0, len(y.Conditions))
	if len(y.Conditions) == 0 {
		r.missing(y.At.n, "the retry has no conditions")
	}
	for _, t := range y.Conditions {
		low, high, isRange := strings.Cut(t.value, "-")
		switch {
		case t.value == "5xx":
			low, high = "500", "599"
		case t.value == "gateway-error":
			low, high = "502", "504"
		case !isRange:
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 32)
		to, err2 := strconv.ParseUint(high, 10, 32)
		if err1 != nil || err2 != nil || from < 400 || to > 599 || from > to {
			r.failf(t.line, "condition %q must be 5xx, gateway-error, a status or a range within 400-599", t.value)
		}
		ranges = append(ranges, &outbound.HttpRoute_Retry_Conditions_StatusRange{Start: uint32(from), End: uint32(to)})
	}
	return ranges
}

// grpcConditions converts the conditions of a retry of gRPC calls. A condition is the name
// of a gRPC status, such as unavailable, as in the annotation retry.linkerd.io/grpc.
func (r *reader) grpcConditions(y retryYAML) *outbound.GrpcRoute_Retry_Conditions {
	c := &outbound.GrpcRoute_Retry_Conditions{}
	if len(y.Conditions) == 0 {
		r.missing(y.At.n, "the retry has no conditions")
	}
	for _, t := range y.Conditions {
		switch t.value {
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
			r.failf(t.line, "condition %q must be cancelled, deadline-exceeded, resource-exhausted, internal or unavailable", t.value)
		}
	}
	return c
}

// accrual converts failure accrual, which ejects an endpoint after consecutive failures.
// If successRateThreshold is set, a success rate below it also ejects the endpoint.
// Missing fields have the defaults of linkerd. accrual returns nil if y is nil.
func (r *reader) accrual(y *accrualYAML) *outbound.FailureAccrual {
	if y == nil {
		return nil
	}
	backoff := &outbound.ExponentialBackoff{
		MinBackoff:  r.orDefault("minPenalty", y.MinPenalty, time.Second),
		MaxBackoff:  r.orDefault("maxPenalty", y.MaxPenalty, time.Minute),
		JitterRatio: float32(r.ratio("jitterRatio", y.Jitter, 0.5, 100)),
	}
	if low, high := backoff.GetMinBackoff().AsDuration(), backoff.GetMaxBackoff().AsDuration(); low > high {
		r.failf(y.At.n, "minPenalty %v must be at most maxPenalty %v", low, high)
	}
	failures := uint32(7)
	if y.Failures.given() {
		failures = r.number("maxFailures", y.Failures)
	}
	msg := &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_ConsecutiveFailures_{
		ConsecutiveFailures: &outbound.FailureAccrual_ConsecutiveFailures{MaxFailures: failures, Backoff: backoff},
	}}
	if y.Threshold.given() {
		requests := uint32(5)
		if y.Requests.given() {
			requests = r.number("successRateMinRequests", y.Requests)
		}
		msg.Kind = &outbound.FailureAccrual_Unified_{Unified: &outbound.FailureAccrual_Unified{
			SuccessRateThreshold: r.ratio("successRateThreshold", y.Threshold, 0, 1),
			Decay:                r.orDefault("successRateWindow", y.Window, 10*time.Second),
			MinRequests:          requests, MaxConsecutiveFailures: failures, Backoff: backoff,
		}}
	} else if y.Window.given() || y.Requests.given() {
		r.failf(max(y.Window.line, y.Requests.line), "successRateWindow and successRateMinRequests require a successRateThreshold")
	}
	if y.MinReady.given() {
		msg.Ejection = &outbound.EjectionConfig{MinReadyEndpoints: r.number("minReadyEndpoints", y.MinReady)}
	}
	return msg
}

// biaser converts the load biaser, which adds a penalty to the load of an endpoint that
// responds with 429 or 503. Missing fields have the defaults of linkerd. biaser returns nil
// if y is nil.
func (r *reader) biaser(y *biaserYAML) *outbound.Backend_BalanceP2C_PenaltyPeakEwma_ {
	if y == nil {
		return nil
	}
	return &outbound.Backend_BalanceP2C_PenaltyPeakEwma_{PenaltyPeakEwma: &outbound.Backend_BalanceP2C_PenaltyPeakEwma{
		DefaultRtt: durationpb.New(defaultRTT), Decay: durationpb.New(rttDecay), PenaltyDecay: durationpb.New(penaltyDecay),
		Penalty:       r.orDefault("penalty", y.Penalty, 5*time.Second),
		MaxRetryAfter: r.orDefault("maxRetryAfter", y.MaxRetryAfter, 30*time.Second),
	}}
}

// ratio parses t, the value of the field with the given name. The value must be a number from 0 to
// the argument most. If the field is missing or invalid, ratio returns the argument otherwise.
func (r *reader) ratio(name string, t text, otherwise, most float64) float64 {
	if !t.given() {
		return otherwise
	}
	x, err := strconv.ParseFloat(t.value, 64)
	if err != nil || !(x >= 0 && x <= most) {
		r.failf(t.line, "%s %q must be a number from 0 to %v", name, t.value, most)
		return otherwise
	}
	return x
}
