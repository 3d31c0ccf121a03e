package tap

import (
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/tap/match"
)

func ipv4() *netpb.IPAddress { return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv4{Ipv4: 10 << 24}} }

func ipv6() *netpb.IPAddress {
	return &netpb.IPAddress{Ip: &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{First: 1}}}
}

func from(tcp *pb.ObserveRequest_Match_Tcp) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Source{Source: tcp}}
}

func netmaskOf(ip *netpb.IPAddress, bits uint32) *pb.ObserveRequest_Match {
	return from(&pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Netmask_{
		Netmask: &pb.ObserveRequest_Match_Tcp_Netmask{Ip: ip, Mask: bits},
	}})
}

func portsOf(lo, hi uint32) *pb.ObserveRequest_Match {
	return from(&pb.ObserveRequest_Match_Tcp{Match: &pb.ObserveRequest_Match_Tcp_Ports{
		Ports: &pb.ObserveRequest_Match_Tcp_PortRange{Min: lo, Max: hi},
	}})
}

func httpOf(h *pb.ObserveRequest_Match_Http) *pb.ObserveRequest_Match {
	return &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Http_{Http: h}}
}

func methodIs(m *http_types.HttpMethod) *pb.ObserveRequest_Match {
	return httpOf(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Method{Method: m}})
}

func schemeIs(s *http_types.Scheme) *pb.ObserveRequest_Match {
	return httpOf(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Scheme{Scheme: s}})
}

// Each error names the part that is wrong.
func TestInvalidMatch(t *testing.T) {
	tests := []struct {
		name string
		m    *pb.ObserveRequest_Match
		want string
	}{
		{"nil", nil, "match: missing"},
		{"empty", &pb.ObserveRequest_Match{}, "match: missing"},
		{"not without inner", match.Not(nil), "match.not: missing"},
		{"not of empty", match.Not(&pb.ObserveRequest_Match{}), "match.not: missing"},
		{"tcp unset", from(&pb.ObserveRequest_Match_Tcp{}), "match.source: neither netmask nor ports"},
		{"tcp nil", from(nil), "match.source: neither netmask nor ports"},
		{"ports 0 0", portsOf(0, 0), "match.source.ports: neither min nor max"},
		{"port min too large", portsOf(65536, 0), "match.source.ports.min: 65536 is not a port"},
		{"port max too large", portsOf(1, 65536), "match.source.ports.max: 65536 is not a port"},
		{"ports reversed", portsOf(9, 8), "match.source.ports: min 9 is above max 8"},
		{"netmask without ip", netmaskOf(nil, 8), "match.source.netmask.ip: missing"},
		{"netmask with empty ip", netmaskOf(&netpb.IPAddress{}, 8), "match.source.netmask.ip: missing"},
		{"mask 0", netmaskOf(ipv4(), 0), "match.source.netmask.mask: 0 is not from 1 to 32"},
		{"mask 33", netmaskOf(ipv4(), 33), "match.source.netmask.mask: 33 is not from 1 to 32"},
		{"mask 129", netmaskOf(ipv6(), 129), "match.source.netmask.mask: 129 is not from 1 to 128"},
		{"mask huge", netmaskOf(ipv6(), 1<<32-1), "match.source.netmask.mask: 4294967295 is not from 1 to 128"},
		{"destination", &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_Destination{}}, "match.destination: neither netmask nor ports"},
		{"label without key", match.DestinationLabel("", "v"), "match.destination_label.key: empty"},
		{"label without value", match.DestinationLabel("k", ""), "match.destination_label.value: empty"},
		{"route label without key", match.RouteLabel("", "v"), "match.route_label.key: empty"},
		{"route label without value", match.RouteLabel("k", ""), "match.route_label.value: empty"},
		{"route label nil", &pb.ObserveRequest_Match{Match: &pb.ObserveRequest_Match_RouteLabel{}}, "match.route_label.key: empty"},
		{"http unset", httpOf(nil), "match.http: missing"},
		{"scheme unset", schemeIs(&http_types.Scheme{}), `match.http.scheme: missing or not a scheme: ""`},
		{"scheme unknown", schemeIs(&http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: 9}}), `match.http.scheme: missing or not a scheme: ""`},
		{"scheme malformed", match.Scheme("a b"), `match.http.scheme: missing or not a scheme: "a b"`},
		{"method unset", methodIs(nil), `match.http.method: missing or not a method: ""`},
		{"method unknown", methodIs(&http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: 99}}), `match.http.method: missing or not a method: ""`},
		{"method empty", match.Method(""), `match.http.method: missing or not a method: ""`},
		{"method malformed", match.Method("G(T"), `match.http.method: missing or not a method: "G(T"`},
		{"authority unset", httpOf(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Authority{}}), "match.http.authority: neither exact nor prefix"},
		{"path unset", httpOf(&pb.ObserveRequest_Match_Http{Match: &pb.ObserveRequest_Match_Http_Path{}}), "match.http.path: neither exact nor prefix"},
		{"deep inside", match.All(match.Any(), match.Any(match.All(), match.Not(match.Method("")))), `match.all[1].any[1].not.http.method: missing or not a method: ""`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := compile(tt.m)
			require.EqualError(t, err, tt.want)
			require.Nil(t, c)
		})
	}
}

func TestMatchLimits(t *testing.T) {
	for _, m := range []*pb.ObserveRequest_Match{
		portsOf(1, 65535), portsOf(65535, 0), portsOf(0, 1),
		netmaskOf(ipv4(), 1), netmaskOf(ipv4(), 32), netmaskOf(ipv6(), 128),
	} {
		_, err := compile(m)
		require.NoError(t, err)
	}
	many := make([]*pb.ObserveRequest_Match, maxConditions-1) // and the All itself
	for i := range many {
		many[i] = match.All()
	}
	_, err := compile(match.All(many...))
	require.NoError(t, err)
	_, err = compile(match.All(match.All(many...)))
	require.EqualError(t, err, "match: more than 1000 conditions")

	deep := match.All()
	for range maxConditions {
		deep = match.Not(deep)
	}
	_, err = compile(deep)
	require.EqualError(t, err, "match: more than 1000 conditions")
}

// Any bytes of a client are either rejected or have a meaning: each request matches
// either a condition or its negation.
func FuzzMatch(f *testing.F) {
	for _, m := range []*pb.ObserveRequest_Match{
		match.All(match.Method("GET"), match.PathPrefix("/api"), match.Not(match.Authority("x"))),
		match.Any(match.Source(mask("10.0.0.0/8")), match.DestinationPorts(1, 9), match.Scheme("https")),
		match.Not(match.RouteLabel("route", "vote")), match.DestinationLabel("pod", "web-1"),
		netmaskOf(ipv6(), 129), portsOf(9, 8), {},
	} {
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(pb.ObserveRequest_Match)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		c, err := compile(m)
		if err != nil {
			require.Nil(t, c)
			require.Contains(t, err.Error(), "match")
			return
		}
		for _, s := range []*subject{sample(), {}} {
			got := c.holds(s.view())
			require.Equal(t, got, naive(m, s))
			require.Equal(t, !got, (&condition{op: opNot, subs: []condition{*c}}).holds(s.view()))
		}
	})
}
