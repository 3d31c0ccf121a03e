package tap

import (
	"context"
	"net/netip"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
)

func wireIPv4(a, b, c, d uint32) *netpb.IPAddress {
	return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: a<<24 | b<<16 | c<<8 | d}}
}

func wireMask(ip *netpb.IPAddress, bits uint32) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Netmask_{
		Netmask: &pb.ObserveRequest_Match_Tcp_Netmask{Ip: ip, Mask: bits},
	}}
}

func wirePorts(lo, hi uint32) *pb.ObserveRequest_Match_Tcp {
	return &pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Ports{
		Ports: &pb.ObserveRequest_Match_Tcp_PortRange{Min: lo, Max: hi},
	}}
}

func wireSource(m *pb.ObserveRequest_Match_Tcp) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Source{Source: m}}
}

func wireDestination(m *pb.ObserveRequest_Match_Tcp) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_Destination{Destination: m}}
}

func wireDestinationLabel(key, value string) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_DestinationLabel{
		DestinationLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

func wireRouteLabel(key, value string) *wireMatch {
	return &wireMatch{Match: &pb.ObserveRequest_Match_RouteLabel{
		RouteLabel: &pb.ObserveRequest_Match_Label{Key: key, Value: value},
	}}
}

func wireScheme(s *http_types.Scheme) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Scheme{Scheme: s}})
}

func wireMethod(m *http_types.HttpMethod) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Method{Method: m}})
}

func wireAuthority(exact, prefix string) *wireMatch {
	return wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{Authority: wireText(exact, prefix)}})
}

// wireSees reports whether a watcher with m sees a request. It sends another request, which the
// watcher always sees, instead of waiting for the absence of an event.
func wireSees(ctx context.Context, t *testing.T, p *process, svc service, m *wireMatch, c *call) bool {
	t.Helper()
	const last = "/wire/last"
	stream := p.observe(ctx, t, &pb.ObserveRequest{Limit: 1, Match: wireAny(m, wirePath(last, ""))})
	rsp, err := svc.Call(ctx, c)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	send(t, svc, get(last))
	return wireNext(t, stream).GetRequestInit().GetPath() != last
}

// The rows, for both directions.
func TestWireMatch(t *testing.T) {
	yes, no := wireAll(), wireAny()
	registered := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}}
	https := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}}
	method := &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_GET}}
	other := &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: "get"}}
	for row, of := range map[string]struct{ holds, fails []*wireMatch }{
		"all":    {[]*wireMatch{wireAll(), wireAll(yes, yes), wireAll(yes, new(wireMatch))}, []*wireMatch{wireAll(yes, no)}},
		"any":    {[]*wireMatch{wireAny(no, yes)}, []*wireMatch{wireAny(), wireAny(no, no), wireAny(new(wireMatch))}},
		"not":    {[]*wireMatch{wireNot(no)}, []*wireMatch{wireNot(yes)}},
		"source": {[]*wireMatch{wireSource(wireMask(wireIPv4(10, 0, 0, 1), 32)), wireSource(wirePorts(40000, 0))}, []*wireMatch{wireSource(wirePorts(8080, 0))}},
		"destination": {
			[]*wireMatch{wireDestination(wireMask(wireIPv4(10, 1, 2, 3), 32)), wireDestination(wirePorts(8080, 0))},
			[]*wireMatch{wireDestination(wirePorts(40000, 0))},
		},
		"ports": {
			[]*wireMatch{wireDestination(wirePorts(8080, 8080)), wireDestination(wirePorts(8000, 9000)), wireDestination(wirePorts(0, 8080))},
			[]*wireMatch{wireDestination(wirePorts(8079, 0)), wireDestination(wirePorts(8081, 9000)), wireDestination(wirePorts(0, 8079))},
		},
		"netmask": {
			[]*wireMatch{wireDestination(wireMask(wireIPv4(10, 255, 0, 0), 8)), wireDestination(wireMask(wireIPv4(10, 1, 2, 2), 31))},
			[]*wireMatch{
				wireDestination(wireMask(wireIPv4(10, 1, 2, 4), 31)),
				wireDestination(wireMask(&netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{}}}, 1)), // another family
			},
		},
		"destination_label": {
			[]*wireMatch{wireDestinationLabel("pod", "web-1")},
			[]*wireMatch{wireDestinationLabel("pod", "web"), wireDestinationLabel("Pod", "web-1"), wireDestinationLabel("node", "web-1")},
		},
		"route_label":    {[]*wireMatch{wireRouteLabel("route", "vote")}, []*wireMatch{wireRouteLabel("route", "x"), wireRouteLabel("pod", "web-1")}},
		"http.scheme":    {[]*wireMatch{wireScheme(registered)}, []*wireMatch{wireScheme(https)}},
		"http.method":    {[]*wireMatch{wireMethod(method)}, []*wireMatch{wireMethod(other)}},
		"http.authority": {[]*wireMatch{wireAuthority("web:80", ""), wireAuthority("", "we")}, []*wireMatch{wireAuthority("web", ""), wireAuthority("", "eb")}},
		"http.path": {
			[]*wireMatch{wirePath("/api/vote", ""), wirePath("", "/api/")},
			[]*wireMatch{wirePath("/api", ""), wirePath("/api/vote?x=1", ""), wirePath("", "api")},
		},
	} {
		for _, direction := range []Direction{Inbound, Outbound} {
			t.Run(row+"/"+direction.String(), func(t *testing.T) {
				p := listen(t, NewServer(new(Registry)), nil)
				svc := Layer[*call, *reply](p.reg, newAccess(), direction, WithDestination(serverAddr, podLabels))(respond("x"))
				ctx := layer.WithRoute(t.Context(), &layer.Route{Labels: map[string]string{"route": "vote"}})
				for i, m := range of.holds {
					require.True(t, wireSees(ctx, t, p, svc, m, get("/api/vote")), "holds %d: %v", i, m)
				}
				for i, m := range of.fails {
					require.False(t, wireSees(ctx, t, p, svc, m, get("/api/vote")), "fails %d: %v", i, m)
				}
			})
		}
	}
}

// Unknown conditions do not match.
func TestWireMatchUnknown(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := Layer[*call, *reply](p.reg, newAccess())(respond("x"))
	bare := func() *call { return &call{method: "GET", path: "/"} }
	all := wirePorts(0, 65535)
	for name, m := range map[string]*wireMatch{
		"source": wireSource(all), "destination": wireDestination(all),
		"route_label": wireRouteLabel("route", "x"), "destination_label": wireDestinationLabel("pod", "x"),
	} {
		require.False(t, wireSees(t.Context(), t, p, svc, m, bare()), name)
	}
	http := &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}}
	require.True(t, wireSees(t.Context(), t, p, svc, wireScheme(http), bare()), "http.scheme: the default is http")
	four := &call{method: "GET", path: "/", source: netip.MustParseAddrPort("[::ffff:10.0.0.1]:1")}
	require.True(t, wireSees(t.Context(), t, p, svc, wireSource(wireMask(wireIPv4(10, 0, 0, 1), 32)), four))
}

func TestWireInvalidMatch(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	ip := wireIPv4(10, 0, 0, 1)
	v6 := &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{First: 1}}}
	for row, of := range map[string][]*wireMatch{
		"not":               {wireNot(nil), wireNot(&wireMatch{})},
		"source":            {wireSource(nil), wireSource(&pb.ObserveRequest_Match_Tcp{})},
		"destination":       {wireDestination(nil)},
		"ports":             {wireSource(wirePorts(0, 0)), wireSource(wirePorts(65536, 0)), wireSource(wirePorts(1, 65536)), wireSource(wirePorts(2, 1))},
		"netmask":           {wireSource(wireMask(ip, 0)), wireSource(wireMask(ip, 33)), wireSource(wireMask(v6, 129)), wireSource(wireMask(nil, 8))},
		"destination_label": {wireDestinationLabel("", "x"), wireDestinationLabel("x", "")},
		"route_label":       {wireRouteLabel("", "x"), wireRouteLabel("x", "")},
		"http.scheme":       {wireScheme(nil), wireScheme(&http_types.Scheme{})},
		"http.method":       {wireMethod(nil), wireMethod(&http_types.HttpMethod{})},
		"http.authority":    {wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{}})},
		"http.path":         {wireHTTP(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Path{}})},
	} {
		t.Run(row, func(t *testing.T) {
			for i, m := range of {
				require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: m}), i)
				require.Equal(t, codes.InvalidArgument, wireRefusal(t, p, &pb.ObserveRequest{Limit: 1, Match: wireAll(m, wireNot(m))}), i)
			}
		})
	}
}

// Several taps on one request are independent.
func TestWireSeveralTaps(t *testing.T) {
	p := listen(t, NewServer(new(Registry)), nil)
	svc := stand(p.reg, respond("x"))
	first := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 2, Match: wireAll()})
	second := p.observe(t.Context(), t, &pb.ObserveRequest{Limit: 2, Match: wirePath("/b", "")})
	send(t, svc, get("/a"))
	send(t, svc, get("/b"))
	for range 3 {
		require.EqualValues(t, 0, wireID(wireNext(t, first)).GetStream())
	}
	id := wireID(wireNext(t, first))
	require.Equal(t, []uint64{0, 1}, []uint64{uint64(id.GetBase()), id.GetStream()})
	id = wireID(wireNext(t, second))
	require.Equal(t, []uint64{1, 0}, []uint64{uint64(id.GetBase()), id.GetStream()})
}
