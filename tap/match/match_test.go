package match_test

import (
	"net/netip"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/tap/match"
)

// The messages of each function. Their meaning is tested where they are
// compiled.
func TestMessages(t *testing.T) {
	tests := []struct {
		name string
		m    *pb.ObserveRequest_Match
		want string
	}{
		{"All", match.All(match.All(), match.Any()), `all { matches { all {} } matches { any {} } }`},
		{"All of none", match.All(), `all {}`},
		{"Any", match.Any(match.All()), `any { matches { all {} } }`},
		{"Not", match.Not(match.All()), `not { all {} }`},
		{"Source IPv4", match.Source(netip.MustParsePrefix("10.1.0.0/16")), `source { netmask { ip { ipv4: 0x0a010000 } mask: 16 } }`},
		{"Source IPv6", match.Source(netip.MustParsePrefix("fd00::1/128")), `source { netmask { ip { ipv6 { first: 0xfd00000000000000 last: 1 } } mask: 128 } }`},
		{"Source zero", match.Source(netip.Prefix{}), `source { netmask {} }`},
		{"SourcePorts", match.SourcePorts(1, 2), `source { ports { min: 1 max: 2 } }`},
		{"Destination", match.Destination(netip.MustParsePrefix("10.0.0.0/8")), `destination { netmask { ip { ipv4: 0x0a000000 } mask: 8 } }`},
		{"DestinationPorts", match.DestinationPorts(80, 0), `destination { ports { min: 80 } }`},
		{"DestinationLabel", match.DestinationLabel("pod", "a"), `destination_label { key: "pod" value: "a" }`},
		{"RouteLabel", match.RouteLabel("route", "a"), `route_label { key: "route" value: "a" }`},
		{"Method GET", match.Method("GET"), `http { method { registered: GET } }`},
		{"Method TRACE", match.Method("TRACE"), `http { method { registered: TRACE } }`},
		{"Method of its own", match.Method("PURGE"), `http { method { unregistered: "PURGE" } }`},
		{"Scheme http", match.Scheme("http"), `http { scheme { registered: HTTP } }`},
		{"Scheme https", match.Scheme("https"), `http { scheme { registered: HTTPS } }`},
		{"Scheme of its own", match.Scheme("coap"), `http { scheme { unregistered: "coap" } }`},
		{"Authority", match.Authority("web"), `http { authority { exact: "web" } }`},
		{"AuthorityPrefix", match.AuthorityPrefix("web"), `http { authority { prefix: "web" } }`},
		{"Path", match.Path("/a"), `http { path { exact: "/a" } }`},
		{"PathPrefix", match.PathPrefix("/a"), `http { path { prefix: "/a" } }`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := new(pb.ObserveRequest_Match)
			require.NoError(t, prototext.Unmarshal([]byte(tt.want), want))
			require.True(t, proto.Equal(want, tt.m), "%v", tt.m)
		})
	}
}

func TestHeaders(t *testing.T) {
	want := new(pb.ObserveRequest_Extract)
	require.NoError(t, prototext.Unmarshal([]byte(`http { headers {} }`), want))
	require.True(t, proto.Equal(want, match.Headers()))
}
