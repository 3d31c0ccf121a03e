package linkerd

import (
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/grpc_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/linkerd/linkerd2-proxy-api/go/opaque_route"
	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/linkerd/linkerd2-proxy-api/go/tls_route"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles"
)

func resource(kind, name string, port uint32) *meta.Metadata {
	group := "gateway.networking.k8s.io"
	if kind == "Service" {
		group = "core"
	}
	return &meta.Metadata{Kind: &meta.Metadata_Resource{Resource: &meta.Resource{
		Group: group, Kind: kind, Namespace: "ns", Name: name, Port: port,
	}}}
}

func seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

// balancer is a backend that is a Service.
func balancer(name string) *outbound.Backend {
	return &outbound.Backend{
		Metadata: resource("Service", name, 80),
		Queue:    &outbound.Queue{Capacity: 100, FailfastTimeout: seconds(3)},
		Kind: &outbound.Backend_Balancer{Balancer: &outbound.Backend_BalanceP2C{
			Discovery: &outbound.Backend_EndpointDiscovery{Kind: &outbound.Backend_EndpointDiscovery_Dst{
				Dst: &outbound.Backend_EndpointDiscovery_DestinationGet{Path: name + ".ns.svc.cluster.local:80"},
			}},
			Load: &outbound.Backend_BalanceP2C_PeakEwma_{PeakEwma: &outbound.Backend_BalanceP2C_PeakEwma{DefaultRtt: seconds(0.03), Decay: seconds(10)}},
		}},
	}
}

func first(b *outbound.Backend, filters ...*outbound.HttpRoute_Filter) *outbound.HttpRoute_Distribution {
	return &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_FirstAvailable_{
		FirstAvailable: &outbound.HttpRoute_Distribution_FirstAvailable{Backends: []*outbound.HttpRoute_RouteBackend{{Backend: b, Filters: filters}}},
	}}
}

// the is the profile's form of balancer.
func the(name string, weight uint32, change ...func(*profiles.Backend)) profiles.Backend {
	b := profiles.Backend{
		Target:    profiles.Target{Authority: name + ".ns.svc.cluster.local:80", Weight: weight},
		Balancing: profiles.Balancing{Decay: 10 * time.Second, QueueCapacity: 100, QueueTimeout: 3 * time.Second},
		Labels: map[string]string{
			"backend_group": "core", "backend_kind": "Service", "backend_namespace": "ns", "backend_name": name,
			"backend_port": "80", "backend_section_name": "",
		},
	}
	for _, f := range change {
		f(&b)
	}
	return b
}

func routeLabels(kind, name string) map[string]string {
	return map[string]string{"route_group": "gateway.networking.k8s.io", "route_kind": kind, "route_namespace": "ns", "route_name": name}
}

func http2(routes ...*outbound.HttpRoute) *outbound.OutboundPolicy {
	return &outbound.OutboundPolicy{
		Metadata: resource("Service", "web", 80),
		Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Http2_{Http2: &outbound.ProxyProtocol_Http2{Routes: routes}}},
	}
}

// converted converts m and returns the texts of the problems.
func converted(t *testing.T, m *outbound.OutboundPolicy) (*profiles.Profile, []string) {
	t.Helper()
	var dropped []string
	p, err := convertPolicy(m, func(err error) { dropped = append(dropped, err.Error()) })
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	return p, dropped
}

// Every field of an HTTP route.
func TestConvertHTTPRoute(t *testing.T) {
	header := func(name, value string) *http_types.Headers {
		return &http_types.Headers{Headers: []*http_types.Headers_Header{{Name: name, Value: []byte(value)}}}
	}
	m := http2(&outbound.HttpRoute{
		Metadata: resource("HTTPRoute", "web", 0),
		Hosts: []*http_route.HostMatch{
			{Match: &http_route.HostMatch_Exact{Exact: "web.example"}},
			{Match: &http_route.HostMatch_Suffix_{Suffix: &http_route.HostMatch_Suffix{ReverseLabels: []string{"com", "example"}}}},
		},
		Rules: []*outbound.HttpRoute_Rule{{
			Matches: []*http_route.HttpRouteMatch{
				{
					Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Exact{Exact: "/a.b"}},
					Headers: []*http_route.HeaderMatch{
						{Name: "x-a", Value: &http_route.HeaderMatch_Exact{Exact: []byte("1")}},
						{Name: "x-b", Value: &http_route.HeaderMatch_Regex{Regex: "a|b"}},
					},
					QueryParams: []*http_route.QueryParamMatch{
						{Name: "q", Value: &http_route.QueryParamMatch_Exact{Exact: "2"}},
						{Name: "r", Value: &http_route.QueryParamMatch_Regex{Regex: ".*"}},
					},
					Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_PUT}},
				},
				{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/p/"}}},
				{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "/"}}},
				{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: "/r|/s"}}},
			},
			Filters: []*outbound.HttpRoute_Filter{
				{Kind: &outbound.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: &http_route.RequestHeaderModifier{
					Add: header("a", "1"), Set: header("b", "2"), Remove: []string{"c"},
				}}},
				{Kind: &outbound.HttpRoute_Filter_ResponseHeaderModifier{ResponseHeaderModifier: &http_route.ResponseHeaderModifier{Set: header("d", "3")}}},
				{Kind: &outbound.HttpRoute_Filter_FailureInjector{FailureInjector: &http_route.HttpFailureInjector{
					Status: 503, Message: "half", Ratio: &http_route.Ratio{Numerator: 1, Denominator: 2},
				}}},
				{Kind: &outbound.HttpRoute_Filter_FailureInjector{FailureInjector: &http_route.HttpFailureInjector{Status: 500}}},
			},
			Timeouts:               &http_route.Timeouts{Request: seconds(3), Response: seconds(2), Idle: seconds(1)},
			AllowL5DRequestHeaders: true,
			Retry: &outbound.HttpRoute_Retry{
				MaxRetries: 200, MaxRequestBytes: 1000, Timeout: seconds(0.5),
				Conditions: &outbound.HttpRoute_Retry_Conditions{StatusRanges: []*outbound.HttpRoute_Retry_Conditions_StatusRange{
					{Start: 500, End: 599}, {Start: 429, End: 429}, {Start: 2, End: 1}, {Start: 500, End: 600},
				}},
				Backoff: &outbound.ExponentialBackoff{MinBackoff: seconds(0.1), MaxBackoff: seconds(1), JitterRatio: 0.5},
			},
			Backends: &outbound.HttpRoute_Distribution{Kind: &outbound.HttpRoute_Distribution_RandomAvailable_{
				RandomAvailable: &outbound.HttpRoute_Distribution_RandomAvailable{Backends: []*outbound.HttpRoute_WeightedRouteBackend{
					{Weight: 90, Backend: &outbound.HttpRoute_RouteBackend{Backend: balancer("v1")}},
					{Weight: 10, Backend: &outbound.HttpRoute_RouteBackend{Backend: balancer("v2"), Filters: []*outbound.HttpRoute_Filter{
						{Kind: &outbound.HttpRoute_Filter_RequestHeaderModifier{RequestHeaderModifier: &http_route.RequestHeaderModifier{Set: header("v", "2")}}},
					}}},
				}},
			}},
		}},
	})
	p, dropped := converted(t, m)
	web, com := profiles.Host{Value: profiles.Exact("web.example")}, profiles.Host{Value: profiles.Suffix(".example.com")}
	exact := profiles.All{
		profiles.Path(`^/a\.b$`), profiles.Header{Name: "x-a", Value: profiles.Exact("1"), AnyLine: true}, profiles.Header{Name: "x-b", Value: profiles.Regex("a|b"), AnyLine: true},
		profiles.Query{Name: "q", Value: profiles.Exact("2")}, profiles.Query{Name: "r", Value: profiles.Regex(".*")}, profiles.Method("PUT"),
	}
	at := func(h profiles.Match) []profiles.Match {
		return []profiles.Match{
			append(profiles.All{h}, exact...), profiles.All{h, profiles.PathPrefix("/p")}, profiles.All{h}, profiles.All{h, profiles.Path("^(?:/r|/s)$")},
		}
	}
	assert.Equal(t, &profiles.Profile{
		Precedence: profiles.MostSpecific, RoutesOnly: true,
		Policy: &profiles.Policy{
			Name: "Service.ns.web:80",
			Labels: map[string]string{
				"parent_group": "core", "parent_kind": "Service", "parent_namespace": "ns", "parent_name": "web", "parent_port": "80", "parent_section_name": "",
			},
			Connections: &profiles.Profile{RoutesOnly: true},
		},
		Routes: []profiles.Route{{
			Name: "HTTPRoute.ns.web", Labels: routeLabels("HTTPRoute", "web"),
			Match: profiles.Any(append(at(web), at(com)...)),
			RequestHeader: layer.HeaderMutation{
				Add: []layer.HeaderField{{Name: "a", Value: "1"}}, Set: []layer.HeaderField{{Name: "b", Value: "2"}}, Remove: []string{"c"},
			},
			ResponseHeader: layer.HeaderMutation{Set: []layer.HeaderField{{Name: "d", Value: "3"}}},
			Faults: []profiles.Fault{
				{Fraction: 0.5, Status: 503, Message: "half"}, {Fraction: 0.5, Status: 500},
			},
			RequestTimeout: 3 * time.Second, AttemptTimeout: 500 * time.Millisecond, ResponseTimeout: 2 * time.Second, IdleTimeout: time.Second, Overrides: true,
			Retry: &profiles.Retry{
				Max: 99, NonIdempotent: true, WithoutBudget: true, LastUnlimited: true,
				MaxBodyBytes: 1000, Statuses: []profiles.Status{{Min: 500, Max: 599}, {Min: 429, Max: 429}},
				Backoff: layer.Backoff{Min: 100 * time.Millisecond, Max: time.Second, Jitter: 0.5},
			},
			Distribution: profiles.RandomAvailable,
			Backends: []profiles.Backend{the("v1", 90), the("v2", 10, func(b *profiles.Backend) {
				b.RequestHeader.Set = []layer.HeaderField{{Name: "v", Value: "2"}}
			})},
		}},
	}, p)
	assert.Equal(t, []string{
		`route 0 "HTTPRoute.ns.web", rule 0: retry: statuses 2 to 1 are not a range within 1 to 599`,
		`route 0 "HTTPRoute.ns.web", rule 0: retry: statuses 500 to 600 are not a range within 1 to 599`,
	}, dropped)
}

// A redirect that replaces a prefix is a route for each prefix.
func TestConvertRedirect(t *testing.T) {
	prefix := func(p string) *http_route.HttpRouteMatch {
		return &http_route.HttpRouteMatch{Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: p}}}
	}
	redirect := &http_route.RequestRedirect{
		Scheme: &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}}, Host: "new.example", Port: 8443,
		Path: &http_route.PathModifier{Replace: &http_route.PathModifier_Prefix{Prefix: "/v2"}},
	}
	rule := &outbound.HttpRoute_Rule{
		Matches:  []*http_route.HttpRouteMatch{prefix("/v1"), prefix("/v0")},
		Filters:  []*outbound.HttpRoute_Filter{{Kind: &outbound.HttpRoute_Filter_Redirect{Redirect: redirect}}},
		Backends: first(balancer("web")),
	}
	p, dropped := converted(t, http2(&outbound.HttpRoute{Metadata: resource("HTTPRoute", "web", 0), Rules: []*outbound.HttpRoute_Rule{rule}}))
	require.Empty(t, dropped)
	require.Len(t, p.Routes, 2)
	for i, old := range []string{"/v1", "/v0"} {
		assert.Equal(t, &profiles.Redirect{Status: 301, Scheme: "https", Host: "new.example", Port: 8443, OldPrefix: old, NewPrefix: "/v2"}, p.Routes[i].Redirect)
		assert.Equal(t, profiles.Any{profiles.All{profiles.PathPrefix(old)}}, p.Routes[i].Match)
	}
	redirect.Path.Replace = &http_route.PathModifier_Prefix{}
	p, _ = converted(t, http2(&outbound.HttpRoute{Rules: []*outbound.HttpRoute_Rule{rule}}))
	require.Len(t, p.Routes, 2)
	assert.Equal(t, "/", p.Routes[0].Redirect.NewPrefix, "an empty text removes the prefix")
	redirect.Path.Replace, redirect.Status = &http_route.PathModifier_Full{Full: "/new"}, 308
	p, _ = converted(t, http2(&outbound.HttpRoute{Rules: []*outbound.HttpRoute_Rule{rule}}))
	require.Len(t, p.Routes, 1)
	assert.Equal(t, &profiles.Redirect{Status: 308, Scheme: "https", Host: "new.example", Port: 8443, Path: "/new"}, p.Routes[0].Redirect)
}

func TestConvertGRPCRoute(t *testing.T) {
	grpc := &outbound.ProxyProtocol_Grpc{
		FailureAccrual: &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_Unified_{Unified: &outbound.FailureAccrual_Unified{
			SuccessRateThreshold: 0.8, Decay: seconds(10), MinRequests: 5, MaxConsecutiveFailures: 7,
			Backoff: &outbound.ExponentialBackoff{MinBackoff: seconds(1), MaxBackoff: seconds(60), JitterRatio: 0.5, RespectRetryAfterHint: true},
		}}},
		Routes: []*outbound.GrpcRoute{{
			Metadata: resource("GRPCRoute", "books", 0),
			Rules: []*outbound.GrpcRoute_Rule{{
				Matches: []*grpc_route.GrpcRouteMatch{{
					Rpc:     &grpc_route.GrpcRpcMatch{Service: "books.Books", Method: "Get"},
					Headers: []*http_route.HeaderMatch{{Name: "x-a", Value: &http_route.HeaderMatch_Exact{Exact: []byte("1")}}},
				}},
				Filters: []*outbound.GrpcRoute_Filter{
					{Kind: &outbound.GrpcRoute_Filter_FailureInjector{FailureInjector: &grpc_route.GrpcFailureInjector{Code: 14, Message: "m"}}},
				},
				RequestTimeout: seconds(4),
				Retry: &outbound.GrpcRoute_Retry{MaxRetries: 1, Conditions: &outbound.GrpcRoute_Retry_Conditions{
					Cancelled: true, DeadineExceeded: true, ResourceExhausted: true, Internal: true, Unavailable: true,
				}},
				Backends: &outbound.GrpcRoute_Distribution{Kind: &outbound.GrpcRoute_Distribution_FirstAvailable_{
					FirstAvailable: &outbound.GrpcRoute_Distribution_FirstAvailable{Backends: []*outbound.GrpcRoute_RouteBackend{
						{Backend: balancer("v1")}, {Backend: balancer("v2")},
					}},
				}},
			}},
		}},
	}
	p, dropped := converted(t, &outbound.OutboundPolicy{
		Metadata: &meta.Metadata{Kind: &meta.Metadata_Default{Default: "x"}},
		Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Grpc_{Grpc: grpc}},
	})
	require.Empty(t, dropped)
	assert.Equal(t, "default.x", p.Policy.Name)
	accrual := func(b *profiles.Backend) {
		b.Balancing.Breaker = layer.BreakerPolicy{
			ConsecutiveFailures: 7, MinSuccessRate: 0.8, Window: 10 * time.Second, MinRequests: 5, RetryAfter: true,
			Backoff: layer.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
		}
	}
	assert.Equal(t, []profiles.Route{{
		Name: "GRPCRoute.ns.books", Labels: routeLabels("GRPCRoute", "books"),
		Match: profiles.Any{profiles.All{
			profiles.GRPC{Service: "books.Books", Method: "Get"}, profiles.Method("POST"), profiles.Header{Name: "x-a", Value: profiles.Exact("1"), AnyLine: true},
		}},
		Faults:         []profiles.Fault{{Fraction: 1, Status: 500, GRPC: 14, Message: "m"}},
		RequestTimeout: 4 * time.Second, Distribution: profiles.FirstAvailable,
		Retry: &profiles.Retry{
			Max: 1, NonIdempotent: true, WithoutBudget: true, LastUnlimited: true, MaxBodyBytes: -1,
			GRPC: []profiles.GRPCStatus{{Min: 1, Max: 1}, {Min: 4, Max: 4}, {Min: 8, Max: 8}, {Min: 13, Max: 13}, {Min: 14, Max: 14}},
		},
		Backends: []profiles.Backend{the("v1", 1, accrual), the("v2", 1, accrual)},
	}}, p.Routes)
}

// Without conditions, only errors and slow attempts are retried. Without retries, their timeout does not matter.
func TestConvertRetryWithoutConditions(t *testing.T) {
	for retries, want := range map[uint32]profiles.Route{
		0: {},
		2: {AttemptTimeout: time.Second, Retry: &profiles.Retry{
			Max: 2, NonIdempotent: true, WithoutBudget: true, LastUnlimited: true, MaxBodyBytes: -1, Statuses: []profiles.Status{},
		}},
	} {
		p, dropped := converted(t, http2(&outbound.HttpRoute{Rules: []*outbound.HttpRoute_Rule{{
			Backends: first(balancer("web")), Retry: &outbound.HttpRoute_Retry{MaxRetries: retries, Timeout: seconds(1)},
		}}}))
		require.Empty(t, dropped)
		require.Equal(t, want.Retry, p.Routes[0].Retry)
		require.Equal(t, want.AttemptTimeout, p.Routes[0].AttemptTimeout)
	}
}

// Connections that are not HTTP have the first opaque route.
func TestConvertOpaque(t *testing.T) {
	route := func(kind *outbound.OpaqueRoute_Distribution, filters ...*outbound.OpaqueRoute_Filter) *outbound.ProxyProtocol_Opaque {
		return &outbound.ProxyProtocol_Opaque{Routes: []*outbound.OpaqueRoute{
			{Metadata: resource("TCPRoute", "web", 0), Rules: []*outbound.OpaqueRoute_Rule{{Backends: kind, Filters: filters}}},
		}}
	}
	two := &outbound.OpaqueRoute_Distribution{Kind: &outbound.OpaqueRoute_Distribution_RandomAvailable_{
		RandomAvailable: &outbound.OpaqueRoute_Distribution_RandomAvailable{Backends: []*outbound.OpaqueRoute_WeightedRouteBackend{
			{Weight: 1, Backend: &outbound.OpaqueRoute_RouteBackend{Backend: balancer("v1")}},
			{Weight: 3, Backend: &outbound.OpaqueRoute_RouteBackend{Backend: balancer("v2"), Filters: []*outbound.OpaqueRoute_Filter{
				{Kind: &outbound.OpaqueRoute_Filter_Forbidden{Forbidden: &opaque_route.Forbidden{}}},
			}}},
		}},
	}}
	want := []profiles.Route{{
		Name: "TCPRoute.ns.web", Labels: routeLabels("TCPRoute", "web"), Match: profiles.Any{profiles.All{}},
		Distribution: profiles.RandomAvailable, Backends: []profiles.Backend{the("v1", 1), the("v2", 3, func(b *profiles.Backend) {
			b.Missing = "a filter of the policy forbids the connection"
		})},
	}}
	p, dropped := converted(t, &outbound.OutboundPolicy{Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Opaque_{Opaque: route(two)}}})
	require.Empty(t, dropped)
	assert.True(t, p.OpaqueProtocol)
	assert.Equal(t, want, p.Policy.Connections.Routes)

	p, dropped = converted(t, &outbound.OutboundPolicy{Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Detect_{
		Detect: &outbound.ProxyProtocol_Detect{
			Timeout: seconds(10), Opaque: route(two),
			Http1: &outbound.ProxyProtocol_Http1{Routes: http2(&outbound.HttpRoute{}).GetProtocol().GetHttp2().GetRoutes()},
			Http2: &outbound.ProxyProtocol_Http2{Routes: []*outbound.HttpRoute{{Rules: []*outbound.HttpRoute_Rule{{Backends: first(balancer("web"))}}}}},
		},
	}}})
	assert.Equal(t, []string{"the routes of HTTP/1 differ from those of HTTP/2, which are used"}, dropped)
	assert.False(t, p.OpaqueProtocol)
	assert.Equal(t, want, p.Policy.Connections.Routes)
	require.Len(t, p.Routes, 1)
	assert.Equal(t, []profiles.Backend{the("web", 1)}, p.Routes[0].Backends)

	forbidden := route(two, &outbound.OpaqueRoute_Filter{Kind: &outbound.OpaqueRoute_Filter_Invalid{Invalid: &opaque_route.Invalid{Message: "m"}}})
	p, dropped = converted(t, &outbound.OutboundPolicy{Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Opaque_{Opaque: forbidden}}})
	assert.Equal(t, []string{`route 0 "TCPRoute.ns.web", rule 0: invalid: m`}, dropped)
	assert.Equal(t, []profiles.Backend{}, p.Policy.Connections.Routes[0].Backends)
}

func TestConvertTLSRoute(t *testing.T) {
	tls := &outbound.ProxyProtocol_Tls{Routes: []*outbound.TlsRoute{{
		Metadata: resource("TLSRoute", "web", 0),
		Snis: []*tls_route.SniMatch{
			{Match: &tls_route.SniMatch_Exact{Exact: "web.example"}},
			{Match: &tls_route.SniMatch_Suffix_{Suffix: &tls_route.SniMatch_Suffix{ReverseLabels: []string{"example"}}}},
		},
		Rules: []*outbound.TlsRoute_Rule{{Backends: &outbound.TlsRoute_Distribution{Kind: &outbound.TlsRoute_Distribution_FirstAvailable_{
			FirstAvailable: &outbound.TlsRoute_Distribution_FirstAvailable{Backends: []*outbound.TlsRoute_RouteBackend{{Backend: balancer("web")}}},
		}}}},
	}}}
	p, dropped := converted(t, &outbound.OutboundPolicy{Protocol: &outbound.ProxyProtocol{Kind: &outbound.ProxyProtocol_Tls_{Tls: tls}}})
	require.Empty(t, dropped)
	assert.Empty(t, p.Routes)
	assert.True(t, p.Policy.ServerNames)
	assert.Equal(t, []profiles.Route{{
		Name: "TLSRoute.ns.web", Labels: routeLabels("TLSRoute", "web"),
		Match: profiles.Any{
			profiles.All{profiles.Host{Value: profiles.Exact("web.example")}}, profiles.All{profiles.Host{Value: profiles.Suffix(".example")}},
		},
		Distribution: profiles.FirstAvailable, Backends: []profiles.Backend{the("web", 1)},
	}}, p.Policy.Connections.Routes)
}

// A backend is a balancer, an endpoint, or missing.
func TestConvertBackend(t *testing.T) {
	c := &policyConverter{drop: func(error) {}}
	forward := &outbound.Backend{Kind: &outbound.Backend_Forward{Forward: &destination.WeightedAddr{
		Addr: &apinet.TcpAddress{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{Ipv4: 10<<24 + 1}}, Port: 80}, Weight: 1,
	}}}
	require.Equal(t, "10.0.0.1:80", c.backend(forward).Endpoint.Addr.String())
	forward.GetForward().Addr = nil
	require.Contains(t, c.backend(forward).Missing, "invalid address")
	require.Equal(t, "backend Service.ns.web:80 has no dispatcher", c.backend(&outbound.Backend{Metadata: resource("Service", "web", 80)}).Missing)
	b := balancer("web")
	b.GetBalancer().Load = &outbound.Backend_BalanceP2C_PenaltyPeakEwma_{
		PenaltyPeakEwma: &outbound.Backend_BalanceP2C_PenaltyPeakEwma{Decay: seconds(5), Penalty: seconds(2)},
	}
	to := c.backend(b)
	require.Equal(t, 5*time.Second, to.Balancing.Decay)
	require.Equal(t, 2*time.Second, to.Balancing.Penalty)
	b.GetBalancer().Discovery = nil
	require.Contains(t, c.backend(b).Missing, "backend Service.ns.web:80: ")
}

func TestConvertFailureAccrual(t *testing.T) {
	consecutive := func(n uint32, b *outbound.ExponentialBackoff) *outbound.FailureAccrual {
		return &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_ConsecutiveFailures_{
			ConsecutiveFailures: &outbound.FailureAccrual_ConsecutiveFailures{MaxFailures: n, Backoff: b},
		}}
	}
	unified := func(u *outbound.FailureAccrual_Unified) *outbound.FailureAccrual {
		return &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_Unified_{Unified: u}}
	}
	for _, tt := range []struct {
		m        *outbound.FailureAccrual
		want     layer.BreakerPolicy
		problems int
	}{
		{nil, layer.BreakerPolicy{}, 0},
		{&outbound.FailureAccrual{}, layer.BreakerPolicy{}, 0},
		{consecutive(0, nil), layer.BreakerPolicy{}, 0},
		{consecutive(3, nil), layer.BreakerPolicy{ConsecutiveFailures: 3}, 0},
		{consecutive(3, &outbound.ExponentialBackoff{MinBackoff: seconds(2), MaxBackoff: seconds(1)}), layer.BreakerPolicy{ConsecutiveFailures: 3}, 1},
		{unified(&outbound.FailureAccrual_Unified{SuccessRateThreshold: 0.5}), layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 0.5}, 0},
		{unified(&outbound.FailureAccrual_Unified{SuccessRateThreshold: 2}), layer.BreakerPolicy{}, 1},
	} {
		n := 0
		c := (&policyConverter{drop: func(error) { n++ }}).withBreaker(tt.m)
		assert.Equal(t, tt.want, c.balancing.Breaker, "%v", tt.m)
		assert.Equal(t, tt.problems, n, "%v", tt.m)
	}
}

// An invalid condition does not widen a route, and a message without a protocol is an error.
func TestConvertInvalidPolicy(t *testing.T) {
	for _, m := range []*outbound.OutboundPolicy{{}, {Protocol: &outbound.ProxyProtocol{}}, nil} {
		_, err := convertPolicy(m, func(err error) { t.Error(err) })
		require.ErrorContains(t, err, "no protocol")
	}
	at := func(m *http_route.HttpRouteMatch, hosts ...*http_route.HostMatch) *outbound.HttpRoute {
		return &outbound.HttpRoute{Hosts: hosts, Rules: []*outbound.HttpRoute_Rule{{Matches: []*http_route.HttpRouteMatch{m}, Backends: first(balancer("web"))}}}
	}
	path := func(regex string) *http_route.PathMatch {
		return &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: regex}}
	}
	p, dropped := converted(t, http2(
		at(&http_route.HttpRouteMatch{Path: path("(")}),
		at(&http_route.HttpRouteMatch{Path: path("a)|(?:b")}),
		at(&http_route.HttpRouteMatch{Headers: []*http_route.HeaderMatch{{Name: "x-a"}}}),
		at(&http_route.HttpRouteMatch{Headers: []*http_route.HeaderMatch{{Name: "x a", Value: &http_route.HeaderMatch_Exact{}}}}),
		at(&http_route.HttpRouteMatch{QueryParams: []*http_route.QueryParamMatch{{}}}),
		at(&http_route.HttpRouteMatch{Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: "a b"}}}),
		at(&http_route.HttpRouteMatch{Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: 99}}}),
		at(&http_route.HttpRouteMatch{}, &http_route.HostMatch{}),
		&outbound.HttpRoute{Rules: []*outbound.HttpRoute_Rule{{}}},
	))
	assert.Len(t, dropped, 9)
	require.Len(t, p.Routes, 1, "the last one, which rejects")
	assert.Equal(t, []profiles.Backend{}, p.Routes[0].Backends)
}
