package inbound

import (
	"context"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/http_route"
	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"github.com/linkerd/linkerd2-proxy-api/go/meta"
	apinet "github.com/linkerd/linkerd2-proxy-api/go/net"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// identities permits some identities from all networks.
func identities(names []string, suffixes ...[]string) *pb.Authn {
	ids := &pb.Authn_PermitMeshTLS_PermitClientIdentities{}
	for _, n := range names {
		ids.Identities = append(ids.Identities, &pb.Identity{Name: n})
	}
	for _, s := range suffixes {
		ids.Suffixes = append(ids.Suffixes, &pb.IdentitySuffix{Parts: s})
	}
	return &pb.Authn{Permit: &pb.Authn_MeshTLS{MeshTLS: &pb.Authn_PermitMeshTLS{Clients: &pb.Authn_PermitMeshTLS_Identities{Identities: ids}}}}
}

func authz(authn *pb.Authn, networks ...*pb.Network) *pb.Authz {
	if networks == nil {
		networks = []*pb.Network{{Net: &apinet.IPNetwork{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{}}}}}
	}
	return &pb.Authz{Networks: networks, Authentication: authn, Labels: map[string]string{"name": "a"}}
}

// The rows come from linkerd2-proxy's inbound/src/policy.rs.
func TestAuthorization(t *testing.T) {
	const spiffe = "spiffe://some-root/some-workload-1"
	for _, c := range []struct {
		name  string
		authn *pb.Authn
		id    string
		want  bool
	}{
		{"SPIFFE", identities([]string{spiffe}), spiffe, true},
		{"other SPIFFE", identities([]string{"spiffe://some-root/some-workload-2"}), spiffe, false},
		{"DNS", identities([]string{"some.id.local"}), "some.id.local", true},
		{"other DNS", identities([]string{"some.id.local.two"}), "some.id.local.one", false},
		{"suffix", identities(nil, []string{"id", "local"}), "some.id.local", true},
		{"whole labels", identities(nil, []string{"id", "local"}), "some-id.local", false},
		{"the suffix itself", identities(nil, []string{"id", "local"}), "id.local", false},
		{"other suffix", identities(nil, []string{"another-id", "local"}), "some.id.local", false},
		{"suffix and SPIFFE", identities(nil, []string{"some-workload-1"}), "spiffe://some-root/x.some-workload-1", false},
		{"one of several", identities([]string{spiffe, "some.workload.one"}), "some.workload.one", true},
		{"all, DNS", identities(nil, nil), "some.id.local", true},
		{"all, SPIFFE", identities(nil, nil), spiffe, true},
		{"all, none", identities(nil, nil), "", false},
	} {
		a, err := authorizationOf(authz(c.authn))
		require.NoError(t, err)
		require.Equal(t, c.want, a.permits(&client{addr: netip.MustParseAddr("10.0.0.1"), secure: true, id: c.id}), c.name)
		require.False(t, a.permits(&client{addr: netip.MustParseAddr("::1"), secure: true, id: c.id}), "an address of another family")
		require.False(t, a.permits(&client{secure: true, id: c.id}), "no address")
	}
}

// A policy's networks have no zones, so a link-local client's zone has no effect.
func TestLinkLocalClient(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	c := clientOf(tcplayer.OverrideAddrs(ours, netip.MustParseAddrPort("[fe80::1%eth0]:1"), netip.MustParseAddrPort("[fe80::2]:80")))
	require.True(t, (&authorization{networks: allNetworks()}).permits(&c))
}

// All requests that a limit rejects share the same labels. With a new pointer for each, every
// request's series would be looked up by its labels, at the cost of 50 allocations.
func TestRateLimitPermit(t *testing.T) {
	l, err := rateLimitOf(&pb.HttpLocalRateLimit{
		Total:    &pb.HttpLocalRateLimit_Limit{RequestsPerSecond: 3},
		Identity: &pb.HttpLocalRateLimit_Limit{RequestsPerSecond: 1},
	}, meters.DefaultResource("web"))
	require.NoError(t, err)
	rejected := make(map[*meters.Permit]bool)
	for range 100 {
		if permit, err := l.take("a"); err != nil {
			require.NotNil(t, permit)
			rejected[permit] = true
		}
	}
	require.LessOrEqual(t, len(rejected), 2, "one for each scope")
}

// Errors about invalid messages name the part.
func TestPolicyOf(t *testing.T) {
	named := map[string]string{"name": "x"}
	http := func(routes ...*pb.HttpRoute) *pb.ProxyProtocol {
		return &pb.ProxyProtocol{Kind: &pb.ProxyProtocol_Http1_{Http1: &pb.ProxyProtocol_Http1{Routes: routes}}}
	}
	m := &meta.Metadata{Kind: &meta.Metadata_Default{Default: "r"}}
	matching := func(match *http_route.HttpRouteMatch) *pb.ProxyProtocol {
		return http(&pb.HttpRoute{Metadata: m, Rules: []*pb.HttpRoute_Rule{{Matches: []*http_route.HttpRouteMatch{match}}}})
	}
	open := &pb.Authn{Permit: &pb.Authn_Unauthenticated{}}
	for _, c := range []struct {
		want string
		msg  *pb.Server
	}{
		{"neither metadata nor a label name", nil},
		{"no protocol", &pb.Server{Labels: named}},
		{"authorization 1: no networks", &pb.Server{Labels: named, Authorizations: []*pb.Authz{{Labels: named}}}},
		{"authorization 1: neither metadata", &pb.Server{Labels: named, Authorizations: []*pb.Authz{nil}}},
		{"authorization 1: no authentication", &pb.Server{Labels: named, Authorizations: []*pb.Authz{authz(nil)}}},
		{"authorization 1: no IP address", &pb.Server{Labels: named, Authorizations: []*pb.Authz{authz(open, &pb.Network{})}}},
		{"authorization 1: network", &pb.Server{Labels: named, Authorizations: []*pb.Authz{authz(open, &pb.Network{
			Net: &apinet.IPNetwork{Ip: &apinet.IPAddress{Ip: &apinet.IPAddress_Ipv4{}}, PrefixLen: 33},
		})}}},
		{"HTTPRoute 1: neither metadata", &pb.Server{Labels: named, Protocol: http(&pb.HttpRoute{})}},
		{"HTTPRoute 2: authorization 1", &pb.Server{Labels: named, Protocol: http(&pb.HttpRoute{Metadata: m}, &pb.HttpRoute{Metadata: m, Authorizations: []*pb.Authz{{}}})}},
		{"missing closing )", &pb.Server{Labels: named, Protocol: matching(&http_route.HttpRouteMatch{
			Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: "("}},
		})}},
		{"unexpected )", &pb.Server{Labels: named, Protocol: matching(&http_route.HttpRouteMatch{
			Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Regex{Regex: "/a)|(?:/b"}},
		})}},
		{"does not begin with '/'", &pb.Server{Labels: named, Protocol: matching(&http_route.HttpRouteMatch{
			Path: &http_route.PathMatch{Kind: &http_route.PathMatch_Prefix{Prefix: "x"}},
		})}},
		{"header", &pb.Server{Labels: named, Protocol: matching(&http_route.HttpRouteMatch{Headers: []*http_route.HeaderMatch{{Name: " "}}})}},
	} {
		_, err := policyOf(c.msg)
		require.ErrorContains(t, err, c.want)
	}

	p, err := policyOf(&pb.Server{Labels: map[string]string{"name": "web", "kind": "server", "group": "g"}, Protocol: http(
		&pb.HttpRoute{Metadata: m, Rules: []*pb.HttpRoute_Rule{{Filters: []*pb.HttpRoute_Filter{{}}}}},
	)})
	require.NoError(t, err)
	require.Equal(t, meters.Resource{Group: "g", Kind: "server", Name: "web"}, p.resource)
	require.EqualError(t, p.policies[p.routes[0].Name].invalid, "unknown filter")
	require.Empty(t, p.authorizations, "of connections that are not HTTP")
	require.Len(t, p.policies[p.routes[0].Name].authorizations, 1, "localhost")

	away := &http_route.RequestRedirect{Path: &http_route.PathModifier{Replace: &http_route.PathModifier_Prefix{}}}
	p, err = policyOf(&pb.Server{Labels: named, Protocol: http(&pb.HttpRoute{Metadata: m, Rules: []*pb.HttpRoute_Rule{{
		Filters: []*pb.HttpRoute_Filter{{Kind: &pb.HttpRoute_Filter_Redirect{Redirect: away}}},
	}}})})
	require.NoError(t, err)
	require.Equal(t, "/", p.routes[0].Redirect.NewPrefix, "an empty text removes the prefix")
}

// Tap shows a denied request with its labels and an explanation of the decision.
func TestPolicyDeniedInTap(t *testing.T) {
	in := newInbound(Config{
		Inbound: settings.Inbound{DefaultPolicy: settings.AllAuthenticated}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
		Controller: unconnected{},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	in.logicals = newCache(ctx, func(context.Context, logicalKey) httplayer.Service { return nil }, 1)
	in.policies = newPolicies(ctx, in)
	next, stop := iter.Pull2(in.Taps.Watch(ctx, &tappb.WatchRequest{Explain: true}))
	defer stop()
	svc := tap.Explain(in.Taps, httplayer.HTTP{})(requestPolicy{in.applyPolicy})
	c := &client{addr: netip.MustParseAddr("10.0.0.2"), policy: in.policies.acquire(80)}
	events := make(chan tap.Event, 2)
	go func() {
		defer close(events)
		for range cap(events) {
			e, err, _ := next()
			if err != nil {
				return
			}
			events <- e
		}
	}()
	require.Eventually(t, func() bool {
		enabled, _ := layer.Describe(svc).State.Get("on").(bool)
		return enabled
	}, 10*time.Second, time.Millisecond)
	inRequest(t, c, func(ctx context.Context, req *http.Request) {
		_, err := svc.Call(ctx, req)
		require.ErrorIs(t, err, errUnauthorized)
	})
	init := <-events
	require.Equal(t, "10.0.0.1:80", init.Destination.String())
	require.Equal(t, map[string]string{"tls": "no_tls_from_remote"}, init.SourceLabels)
	require.Equal(t, "all-authenticated", init.DestinationLabels["srv_name"])
	require.Equal(t, "default", init.DestinationLabels["route_name"])
	end := (<-events).ResponseEnd
	require.NotNil(t, end)
	require.Len(t, end.Explanation, 1)
	require.Contains(t, end.Explanation[0].String(), "server=all-authenticated route=default permitted_by=none")
}

// Denied requests are as cheap as permitted ones, because anyone may send many.
func TestPolicyDeniedAllocations(t *testing.T) {
	in := newInbound(Config{
		Inbound: settings.Inbound{DefaultPolicy: settings.AllAuthenticated}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
		Controller: unconnected{},
	})
	in.logicals = newCache(t.Context(), func(context.Context, logicalKey) httplayer.Service { return nil }, 1)
	in.policies = newPolicies(t.Context(), in)
	svc := requestPolicy{in.applyPolicy}
	inRequest(t, &client{addr: netip.MustParseAddr("10.0.0.2"), policy: in.policies.acquire(80)}, func(ctx context.Context, req *http.Request) {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			_, err := svc.Call(ctx, req)
			assert.ErrorIs(t, err, errUnauthorized)
		}))
	})
}

// Tap shows a denied connection with its explanation.
func TestPolicyDeniedConnectionInTap(t *testing.T) {
	in := newInbound(Config{
		Inbound: settings.Inbound{DefaultPolicy: settings.AllAuthenticated}, Meters: meters.New(meters.Config{}), Taps: new(tap.Registry),
		Controller: unconnected{},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	in.policies = newPolicies(ctx, in)
	client, dst := netip.MustParseAddrPort("10.0.0.2:1"), netip.MustParseAddrPort("10.0.0.1:6379")
	svc := connections().
		With("explain", tap.ExplainConnections(in.Taps)).
		With("policy", in.withPolicy).
		Service(in.admission(nil))
	stopped := make(chan struct{})
	go func() { // until the watcher sees one
		defer close(stopped)
		for ctx.Err() == nil {
			ours, theirs := net.Pipe()
			_, err := svc.Call(t.Context(), tcplayer.OverrideAddrs(ours, client, dst))
			assert.ErrorContains(t, err, "unauthorized connection")
			assert.NoError(t, theirs.Close())
			runtime.Gosched()
		}
	}()
	for e, err := range in.Taps.Watch(ctx, &tappb.WatchRequest{Explain: true}) {
		require.NoError(t, err)
		require.Equal(t, dst, e.Destination)
		require.NotNil(t, e.Close)
		require.Contains(t, e.Close.Err, "unauthorized connection on default/all-authenticated")
		if len(e.Close.Explanation) == 1 { // the connection began after the watch
			require.Contains(t, e.Close.Explanation[0].String(), "server=all-authenticated permitted_by=none")
			break
		}
	}
	require.NoError(t, ctx.Err())
	cancel()
	<-stopped
}
