package controller

import (
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestSetRejectsInvalid(t *testing.T) {
	routed := func(r Route) Destination { return Destination{Profile: &Profile{Routes: []Route{r}}} }
	everything := Match{Path: "/.*"}
	for _, c := range []struct {
		name string
		d    Destination
		want string
	}{
		{web, Destination{Endpoints: []Endpoint{{}}}, `destinations["web.test:80"].endpoints[0].addr: missing: addr is required`},
		{web, Destination{Endpoints: endpointsAt("10.0.0.1:80", "[::ffff:10.0.0.1]:80")}, `destinations["web.test:80"].endpoints[1].addr "[::ffff:10.0.0.1]:80": the address of endpoints[0]: take one out`},
		{web, Destination{Endpoints: []Endpoint{{Addr: addr("10.0.0.1:80"), Protocol: "h3"}}}, `destinations["web.test:80"].endpoints[0].protocol "h3": want one of h2, opaque`},
		{web, Destination{Endpoints: []Endpoint{{Addr: addr("10.0.0.1:80"), InboundPort: 4143}}}, `destinations["web.test:80"].endpoints[0].opaque_port "4143": it requires an identity`},
		{web, Destination{Endpoints: []Endpoint{{Addr: addr("10.0.0.1:80"), InboundPort: 65535, Identity: "id"}}}, `destinations["web.test:80"].endpoints[0].opaque_port "65535": want a port from 1 to 65534`},
		{web, Destination{Profile: &Profile{Endpoint: &Endpoint{}}}, `destinations["web.test:80"].profile.endpoint.addr: missing: addr is required`},
		{web, Destination{Labels: map[string]string{"": "x"}}, `destinations["web.test:80"].labels: a label without a name`},
		{web, Destination{Labels: map[string]string{"a": "\xff"}}, `destinations["web.test:80"]: cannot be encoded: `},
		{web, Destination{Absent: true, Profile: &Profile{}}, `destinations["web.test:80"]: the destination does not exist: want no labels, endpoints, profile and policy`},
		{"10.0.0.1:80", Destination{Absent: true}, `destinations["10.0.0.1:80"]: an IP address is not resolved: want only a profile and a policy`},
		{"no host", Destination{}, `destinations["no host"]: "no host" is not host:port: ' ' is not allowed in a name`},
		{web, routed(Route{Match: everything}), `destinations["web.test:80"].profile.routes[0].name: missing: name is required`},
		{web, routed(Route{Name: "r"}), `destinations["web.test:80"].profile.routes[0].match: want method, path, all, any or not`},
		{web, routed(Route{Name: "r", Match: Match{Not: &Match{}}}), `destinations["web.test:80"].profile.routes[0].match.not: want method, path, all, any or not`},
		{web, routed(Route{Name: "r", Match: Match{All: []Match{{Method: "get"}}}}), `destinations["web.test:80"].profile.routes[0].match.all[0].method "get": methods are case-sensitive: write GET`},
		{web, routed(Route{Name: "r", Match: everything, Timeout: -1}), `destinations["web.test:80"].profile.routes[0].timeout "-1ns": want a duration of more than 0`},
		{web, routed(Route{Name: "r", Match: everything, RetryNonIdempotent: true}), `destinations["web.test:80"].profile.routes[0].retry_non_idempotent "true": it requires retryable: true`},
		{web, routed(Route{Name: "r", Match: everything, Classes: []ResponseClass{{}}}), `destinations["web.test:80"].profile.routes[0].response_classes[0].status "0-0": want a range within 100-999`},
		{web, routed(Route{Name: "r", Match: everything, Labels: map[string]string{"route": "x"}}), `destinations["web.test:80"].profile.routes[0].labels.route "x": this label is the name of the route: take it out`},
		{web, Destination{Profile: &Profile{Name: "a..b"}}, `destinations["web.test:80"].profile.name "a..b": a label is empty`},
		{web, Destination{Profile: &Profile{Splits: []Split{{}}}}, `destinations["web.test:80"].profile.splits[0].authority: "" is not host:port: the name must not be empty`},
		{web, Destination{Profile: &Profile{Splits: []Split{{Authority: "web.test"}}}}, `destinations["web.test:80"].profile.splits[0].authority "web.test": want a name with a port, such as web.shop.svc.cluster.local:80`},
		{web, Destination{Profile: &Profile{Endpoint: &Endpoint{Addr: addr("10.0.0.1:80")}}}, `destinations["web.test:80"].profile.endpoint: clients ignore it, because the destination has a name`},
		{"10.0.0.1:80", Destination{Profile: &Profile{Name: "x", Endpoint: &Endpoint{Addr: addr("10.0.0.1:80")}}}, `destinations["10.0.0.1:80"].profile.endpoint: clients ignore it, because the destination has a name`},
		{web, Destination{Profile: &Profile{Budget: &RetryBudget{}}}, `destinations["web.test:80"].profile.retry_budget.ttl "0s": want a duration from 1s to 1m`},
	} {
		ctrl := New(nil)
		set(t, ctrl, one("kept.test:80", Destination{}))
		err := ctrl.Set(Config{Destinations: map[string]Destination{"kept.test:80": {Absent: true}, c.name: c.d}})
		require.ErrorContains(t, err, c.want)
		require.True(t, ctrl.entries["kept.test:80"].exists(), "a refused configuration changes nothing")
		require.Len(t, ctrl.entries, 1)
	}
}

func TestSetReportsAllErrors(t *testing.T) {
	err := New(nil).Set(Config{Destinations: map[string]Destination{
		"b.test": {Endpoints: []Endpoint{{}, {Addr: addr("10.0.0.1:80"), Protocol: "x"}}, Profile: &Profile{Routes: []Route{{Match: Match{Path: "/"}}}}},
		"a..b":   {},
		"B.test": {},
	}})
	require.EqualError(t, err, strings.Join([]string{
		`destinations["a..b"]: "a..b" is not host:port: a label is empty`,
		`destinations["b.test"]: the same destination as "B.test", in another spelling: take one out`,
		`destinations["b.test"].endpoints[0].addr: missing: addr is required`,
		`destinations["b.test"].endpoints[1].protocol "x": want one of h2, opaque`,
		`destinations["b.test"].profile.routes[0].name: missing: name is required`,
	}, "\n"))
}

// Set keeps nothing of a configuration, so that the caller may change it later.
func TestSetCopiesConfig(t *testing.T) {
	c := New(nil)
	labels := map[string]string{"a": "x"}
	cfg := one(web, Destination{Labels: labels, Endpoints: []Endpoint{{Addr: addr("10.0.0.1:80"), Labels: labels}}})
	set(t, c, cfg)
	before := c.entries[web].snapshot()
	labels["a"] = "changed"
	cfg.Destinations[web].Endpoints[0].Weight = 1
	want := plain(1, 80)
	want.MetricLabels = map[string]string{"a": "x"}
	same(t, addition(map[string]string{"a": "x"}, want), before)
	same(t, before, c.entries[web].snapshot())
}

func TestProfileMessage(t *testing.T) {
	entries, err := compile(one("web.test:8080", Destination{Profile: &Profile{
		Routes: []Route{{
			Name: "vote", Labels: map[string]string{"team": "ballot"}, Retryable: true, Timeout: 1500 * time.Millisecond,
			Match: Match{
				Method: "GET", Path: "/vote", All: []Match{{Path: "/a"}}, Any: []Match{{Method: "PURGE"}, {Path: "/b"}},
				Not: &Match{Path: "/c"},
			},
			Classes: []ResponseClass{{Min: 500, Max: 599, Failure: true}},
		}},
		Budget: &RetryBudget{Ratio: 0.5, MinPerSecond: 3, TTL: time.Second},
	}}))
	require.NoError(t, err)

	exact, err := compile(one("10.0.0.1:2525", Destination{Profile: &Profile{
		Opaque:   true,
		Endpoint: &Endpoint{Addr: addr("[::ffff:10.0.0.1]:2525"), Identity: "mail.id", InboundPort: 4143, Protocol: Opaque},
	}}))
	require.NoError(t, err)
	ep := plain(1, 2525)
	ep.TlsIdentity = identityMessage(Endpoint{Identity: "mail.id"})
	ep.ProtocolHint = &pb.ProtocolHint{
		Protocol:        &pb.ProtocolHint_Opaque_{Opaque: &pb.ProtocolHint_Opaque{}},
		OpaqueTransport: &pb.ProtocolHint_OpaqueTransport{InboundPort: 4143},
	}
	same(t, &pb.DestinationProfile{OpaqueProtocol: true, Endpoint: ep}, exact["10.0.0.1:2525"].profile)

	path := func(p string) *pb.RequestMatch {
		return &pb.RequestMatch{Match: &pb.RequestMatch_Path{Path: &pb.PathMatch{Regex: p}}}
	}
	method := func(m *http_types.HttpMethod) *pb.RequestMatch {
		return &pb.RequestMatch{Match: &pb.RequestMatch_Method{Method: m}}
	}
	seq := func(ms ...*pb.RequestMatch) *pb.RequestMatch_Seq { return &pb.RequestMatch_Seq{Matches: ms} }
	purge := method(&http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: "PURGE"}})
	same(t, &pb.DestinationProfile{
		FullyQualifiedName: "web.test",
		Routes: []*pb.Route{{
			Condition: &pb.RequestMatch{Match: &pb.RequestMatch_All{All: seq(
				method(&http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_GET}}),
				path("/vote"),
				&pb.RequestMatch{Match: &pb.RequestMatch_All{All: seq(path("/a"))}},
				&pb.RequestMatch{Match: &pb.RequestMatch_Any{Any: seq(purge, path("/b"))}},
				&pb.RequestMatch{Match: &pb.RequestMatch_Not{Not: path("/c")}},
			)}},
			MetricsLabels: map[string]string{"route": "vote", "team": "ballot"},
			IsRetryable:   true,
			Timeout:       &durationpb.Duration{Seconds: 1, Nanos: 500_000_000},
			ResponseClasses: []*pb.ResponseClass{{
				Condition: &pb.ResponseMatch{Match: &pb.ResponseMatch_Status{Status: &pb.HttpStatusRange{Min: 500, Max: 599}}},
				IsFailure: true,
			}},
		}},
		RetryBudget: &pb.RetryBudget{RetryRatio: 0.5, MinRetriesPerSecond: 3, Ttl: durationpb.New(time.Second)},
	}, entries["web.test:8080"].profile)
}
