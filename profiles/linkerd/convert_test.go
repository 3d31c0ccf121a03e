package linkerd

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// Short forms of the messages.

type (
	request  = destination.RequestMatch
	response = destination.ResponseMatch
)

func path(regex string) *request {
	return &request{Match: &destination.RequestMatch_Path{Path: &destination.PathMatch{Regex: regex}}}
}

func registered(m http_types.HttpMethod_Registered) *request {
	return &request{Match: &destination.RequestMatch_Method{
		Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: m}},
	}}
}

func unregistered(m string) *request {
	return &request{Match: &destination.RequestMatch_Method{
		Method: &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: m}},
	}}
}

func all(ms ...*request) *request {
	return &request{Match: &destination.RequestMatch_All{All: &destination.RequestMatch_Seq{Matches: ms}}}
}

func anyOf(ms ...*request) *request {
	return &request{Match: &destination.RequestMatch_Any{Any: &destination.RequestMatch_Seq{Matches: ms}}}
}

func not(m *request) *request {
	return &request{Match: &destination.RequestMatch_Not{Not: m}}
}

func statusRange(lowest, highest uint32) *response {
	return &response{Match: &destination.ResponseMatch_Status{Status: &destination.HttpStatusRange{Min: lowest, Max: highest}}}
}

func allResponses(ms ...*response) *response {
	return &response{Match: &destination.ResponseMatch_All{All: &destination.ResponseMatch_Seq{Matches: ms}}}
}

func anyResponse(ms ...*response) *response {
	return &response{Match: &destination.ResponseMatch_Any{Any: &destination.ResponseMatch_Seq{Matches: ms}}}
}

func notResponse(m *response) *response {
	return &response{Match: &destination.ResponseMatch_Not{Not: m}}
}

func ipv4(ip, port uint32) *net.TcpAddress {
	return &net.TcpAddress{Ip: &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: ip}}, Port: port}
}

// whole is a message with everything in it.
func whole() *destination.DestinationProfile {
	return &destination.DestinationProfile{
		FullyQualifiedName: "web.default.svc.cluster.local",
		OpaqueProtocol:     true,
		Routes: []*destination.Route{{
			Condition: all(registered(http_types.HttpMethod_GET), anyOf(path("/a"), not(path("/b.*"))), unregistered("X")),
			ResponseClasses: []*destination.ResponseClass{
				{Condition: allResponses(statusRange(500, 599), notResponse(statusRange(503, 503))), IsFailure: true},
				{Condition: anyResponse(statusRange(200, 200))},
			},
			MetricsLabels: map[string]string{"route": "GET /a", "team": "web"},
			IsRetryable:   true,
			Timeout:       durationpb.New(1500 * time.Millisecond),
		}},
		RetryBudget: &destination.RetryBudget{RetryRatio: 0.25, MinRetriesPerSecond: 10, Ttl: durationpb.New(10 * time.Second)},
		DstOverrides: []*destination.WeightedDst{
			{Authority: "v1.default.svc.cluster.local:80", Weight: 9}, {Authority: "v2:80", Weight: 0},
		},
		Endpoint: &destination.WeightedAddr{
			Addr: ipv4(0x0a000001, 8080), MetricLabels: map[string]string{"pod": "web-1"}, Weight: 10000,
			TlsIdentity: &destination.TlsIdentity{
				Strategy: &destination.TlsIdentity_UriLikeIdentity_{
					UriLikeIdentity: &destination.TlsIdentity_UriLikeIdentity{Uri: "spiffe://root/ns/web"},
				},
				ServerName: &destination.TlsIdentity_DnsLikeIdentity{Name: "sni"},
			},
			ProtocolHint: &destination.ProtocolHint{
				Protocol:        &destination.ProtocolHint_H2_{H2: &destination.ProtocolHint_H2{}},
				OpaqueTransport: &destination.ProtocolHint_OpaqueTransport{InboundPort: 4143},
			},
			AuthorityOverride: &destination.AuthorityOverride{AuthorityOverride: "web:80"},
		},
	}
}

func TestConvert(t *testing.T) {
	got := convert(whole(), func(err error) { assert.NoError(t, err) })
	assert.Equal(t, &profiles.Profile{
		Name:           "web.default.svc.cluster.local",
		OpaqueProtocol: true,
		Distribution:   profiles.RandomAvailable,
		Routes: []profiles.Route{{
			Name: "GET /a",
			Match: profiles.All{
				profiles.Method("GET"),
				profiles.Any{profiles.Path("/a"), profiles.Not{Match: profiles.Path("/b.*")}},
				profiles.Method("X"),
			},
			Classes: []profiles.ResponseClass{
				{
					Match:   profiles.All{profiles.Status{Min: 500, Max: 599}, profiles.Not{Match: profiles.Status{Min: 503, Max: 503}}},
					Failure: true,
				},
				{Match: profiles.Any{profiles.Status{Min: 200, Max: 200}}},
			},
			Labels:  map[string]string{"route": "GET /a", "team": "web"},
			Retry:   &profiles.Retry{NonIdempotent: true},
			Timeout: 1500 * time.Millisecond,
		}},
		RetryBudget: &profiles.RetryBudget{Ratio: 0.25, MinPerSecond: 10, TTL: 10 * time.Second},
		Targets:     []profiles.Target{{Authority: "v1.default.svc.cluster.local:80", Weight: 9}, {Authority: "v2:80"}},
		Endpoint: &resolve.Endpoint{
			Labels: map[string]string{"pod": "web-1"}, Weight: 10000,
			ID: resolve.ID{
				Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Protocol: resolve.H2,
				ServerName: "sni", Identity: "spiffe://root/ns/web", Authority: "web:80", OpaquePort: 4143,
			},
		},
	}, got)
	assert.Equal(t, &profiles.Profile{Distribution: profiles.RandomAvailable}, convert(new(destination.DestinationProfile), nil))
}

func TestConvertMethods(t *testing.T) {
	for number, name := range http_types.HttpMethod_Registered_name {
		got := convertRequestMatch(registered(http_types.HttpMethod_Registered(number)), nil)
		assert.Equal(t, profiles.Method(name), got)
	}
	assert.Len(t, http_types.HttpMethod_Registered_name, 9)
}

// Only the invalid part of a message is dropped, with a line that names where it
// was; the rest is applied.
func TestConvertInvalidParts(t *testing.T) {
	route := func(m *destination.DestinationProfile) *destination.Route { return m.GetRoutes()[0] }
	for _, tt := range []struct {
		what    string
		spoil   func(*destination.DestinationProfile)
		missing func(*profiles.Profile) // removes the invalid part from the whole profile
		log     string
	}{
		{
			"route without condition",
			func(m *destination.DestinationProfile) { route(m).Condition = nil },
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: no condition",
		},
		{
			"route with an empty condition",
			func(m *destination.DestinationProfile) { route(m).Condition = &request{} },
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: no condition",
		},
		{
			"route with a bad expression",
			func(m *destination.DestinationProfile) { route(m).Condition = path("(") },
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: path \"(\": error parsing regexp: missing closing ): `^($`",
		},
		{
			"route with the negation of nothing",
			func(m *destination.DestinationProfile) { route(m).Condition = not(&request{}) },
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: no condition",
		},
		{
			"empty member",
			func(m *destination.DestinationProfile) {
				route(m).Condition = all(&request{}, path("/"))
			},
			func(p *profiles.Profile) { p.Routes[0].Match = profiles.All{profiles.Path("/")} },
			"route 0: member of a condition: empty",
		},
		{
			"all members say nothing",
			func(m *destination.DestinationProfile) { route(m).Condition = anyOf(not(&request{})) },
			func(p *profiles.Profile) { p.Routes[0].Match = profiles.Any{} },
			"route 0: member of a condition: empty",
		},
		{
			"method that is not registered",
			func(m *destination.DestinationProfile) { route(m).Condition = registered(99) },
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: method 99 is not registered",
		},
		{
			"method without a type",
			func(m *destination.DestinationProfile) {
				route(m).Condition = &request{Match: &destination.RequestMatch_Method{Method: &http_types.HttpMethod{}}}
			},
			func(p *profiles.Profile) { p.Routes = nil },
			"route 0: no condition",
		},
		{
			"class without condition",
			func(m *destination.DestinationProfile) { route(m).GetResponseClasses()[0].Condition = nil },
			func(p *profiles.Profile) { p.Routes[0].Classes = p.Routes[0].Classes[1:] },
			"route 0: response class 0: no condition",
		},
		{
			"class with an empty list",
			func(m *destination.DestinationProfile) { route(m).GetResponseClasses()[1].Condition = anyResponse() },
			func(p *profiles.Profile) { p.Routes[0].Classes = p.Routes[0].Classes[:1] },
			"route 0: response class 1: no valid member",
		},
		{
			"class with a status that does not exist",
			func(m *destination.DestinationProfile) {
				route(m).GetResponseClasses()[0].Condition = statusRange(65536+200, math.MaxUint32)
			},
			func(p *profiles.Profile) { p.Routes[0].Classes = p.Routes[0].Classes[1:] },
			"route 0: response class 0: status 65736 to 2147483647 is not within 100 to 999",
		},
		{
			"negative timeout",
			func(m *destination.DestinationProfile) { route(m).Timeout = durationpb.New(-1) },
			func(p *profiles.Profile) { p.Routes[0].Timeout = 0 },
			"route 0: timeout: -1ns is below 0",
		},
		{
			"timeout that is not a duration",
			func(m *destination.DestinationProfile) {
				route(m).Timeout = &durationpb.Duration{Seconds: 1, Nanos: -1}
			},
			func(p *profiles.Profile) { p.Routes[0].Timeout = 0 },
			"route 0: timeout: ",
		},
		{
			"target that is an address",
			func(m *destination.DestinationProfile) { m.GetDstOverrides()[0].Authority = "10.0.0.1:80" },
			func(p *profiles.Profile) { p.Targets = p.Targets[1:] },
			`target "10.0.0.1:80": not a DNS name`,
		},
		{
			"endpoint without address",
			func(m *destination.DestinationProfile) { m.GetEndpoint().GetAddr().Ip = nil },
			func(p *profiles.Profile) { p.Endpoint = nil },
			"endpoint: no IP address",
		},
		{
			"budget without ttl",
			func(m *destination.DestinationProfile) { m.GetRetryBudget().Ttl = nil },
			func(p *profiles.Profile) { p.RetryBudget = nil },
			"retry budget: ttl 0s is not from 1s to 60s",
		},
		{ // C5: ignores_invalid_retry_budget_ttl
			"budget with a ttl of 1000 s",
			func(m *destination.DestinationProfile) { m.GetRetryBudget().Ttl = durationpb.New(1000 * time.Second) },
			func(p *profiles.Profile) { p.RetryBudget = nil },
			"retry budget: ttl 16m40s is not from 1s to 60s",
		},
		{ // C5: ignores_invalid_retry_budget_ratio
			"budget with a ratio of 10 000",
			func(m *destination.DestinationProfile) { m.GetRetryBudget().RetryRatio = 10000 },
			func(p *profiles.Profile) { p.RetryBudget = nil },
			"retry budget: ratio 10000 is not from 0 to 1000",
		},
		{ // C5: ignores_invalid_retry_budget_negative_ratio
			"budget with a negative ratio",
			func(m *destination.DestinationProfile) { m.GetRetryBudget().RetryRatio = -1 },
			func(p *profiles.Profile) { p.RetryBudget = nil },
			"retry budget: ratio -1 is not from 0 to 1000",
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			want := convert(whole(), nil)
			tt.missing(want)
			m := whole()
			tt.spoil(m)
			var log []string
			got := convert(m, func(err error) { log = append(log, err.Error()) })
			assert.Equal(t, want, got)
			require.NotEmpty(t, log)
			assert.Contains(t, log[0], tt.log)
		})
	}
}

// A bad route takes no other with it.
func TestConvertInvalidRoute(t *testing.T) {
	var log []string
	p := convert(&destination.DestinationProfile{Routes: []*destination.Route{
		{Condition: path("/a")}, {}, {Condition: path("/c")},
	}}, func(err error) { log = append(log, err.Error()) })
	assert.Equal(t, []profiles.Route{{Match: profiles.Path("/a")}, {Match: profiles.Path("/c")}}, p.Routes)
	assert.Equal(t, []string{"route 1: no condition"}, log)
}

// FuzzProfile: any message becomes a Profile without invalid parts other than members
// of conditions. The result depends on the message only.
func FuzzProfile(f *testing.F) {
	bad := whole()
	bad.Routes = append(bad.Routes, nil, &destination.Route{}, &destination.Route{
		Condition:       all(path("("), &request{}, not(not(registered(77)))),
		ResponseClasses: []*destination.ResponseClass{{}, {Condition: allResponses()}, {Condition: notResponse(statusRange(0, 0))}},
		Timeout:         &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -5},
	})
	bad.DstOverrides = append(bad.DstOverrides, &destination.WeightedDst{Authority: "[::1]:80", Weight: 1})
	bad.RetryBudget.RetryRatio = float32(math.NaN())
	bad.Endpoint = &destination.WeightedAddr{}
	for _, m := range []*destination.DestinationProfile{{}, whole(), bad} {
		seed, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		m := new(destination.DestinationProfile)
		if proto.Unmarshal(message, m) != nil {
			return
		}
		dropped := 0
		p := convert(m, func(err error) {
			require.Error(t, err)
			dropped++
		})
		if p.Endpoint != nil {
			require.NoError(t, p.Endpoint.Validate())
		}
		for _, r := range p.Routes {
			require.NoError(t, profiles.ValidateMatch(r.Match))
			require.GreaterOrEqual(t, r.Timeout, time.Duration(0))
			for _, c := range r.Classes {
				require.NoError(t, c.Validate())
			}
		}
		for _, target := range p.Targets {
			require.NoError(t, target.Validate())
		}
		if p.RetryBudget != nil {
			require.NoError(t, p.RetryBudget.Validate())
		}
		require.LessOrEqual(t, len(p.Routes), len(m.GetRoutes()))
		if len(p.Routes) < len(m.GetRoutes()) || len(p.Targets) < len(m.GetDstOverrides()) {
			require.NotZero(t, dropped, "nothing is dropped in silence")
		}
		require.Equal(t, p, convert(m, func(error) {}))
	})
}
