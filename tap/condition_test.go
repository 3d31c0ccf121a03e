package tap

import (
	"context"
	"net/netip"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
)

// subject is one request with all values that conditions compare.
type subject struct {
	call
	destination netip.AddrPort
	labels      map[string]string
	route       *layer.Route
}

// view reads s as a Layer does.
func (s *subject) view() *view {
	ctx := context.Background()
	if s.route != nil {
		ctx = layer.WithRoute(ctx, s.route)
	}
	layer := Layer[*call, *reply](nil, newAccess(), WithDestination(s.destination, s.labels))(nil).(*tapped[*call, *reply])
	v := new(view)
	layer.read(v, readsAll, ctx, &s.call)
	return v
}

func (s *subject) meets(t interface {
	require.TestingT
	Helper()
}, m *pb.ObserveRequest_Match) bool {
	t.Helper()
	c, err := compile(m)
	require.NoError(t, err)
	return c.holds(s.view())
}

func sample() *subject {
	return &subject{
		call: call{
			method: "GET", scheme: "https", authority: "web.shop:80", path: "/api/vote",
			source: netip.MustParseAddrPort("10.0.0.7:40000"),
		},
		destination: netip.MustParseAddrPort("[fd00::1]:8080"),
		labels:      map[string]string{"pod": "web-1"},
		route:       &layer.Route{Labels: map[string]string{"route": "vote"}},
	}
}

func mask(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestMatch(t *testing.T) {
	yes, no := match.All(), match.Any()
	unknown := func(s *subject) { s.source, s.destination = netip.AddrPort{}, netip.AddrPort{} }
	tests := []struct {
		name   string
		m      *pb.ObserveRequest_Match
		change func(*subject)
		want   bool
	}{
		{"all/empty", match.All(), nil, true},
		{"all/every", match.All(yes, yes), nil, true},
		{"all/one fails", match.All(yes, no), nil, false},
		{"all/member without a value is skipped", match.All(yes, &pb.ObserveRequest_Match{}, nil), nil, true},
		{"any/empty", match.Any(), nil, false},
		{"any/one", match.Any(no, yes), nil, true},
		{"any/none", match.Any(no, no), nil, false},
		{"any/only members without a value", match.Any(&pb.ObserveRequest_Match{}), nil, false},
		{"not/true", match.Not(yes), nil, false},
		{"not/false", match.Not(no), nil, true},

		{"source/in", match.Source(mask("10.0.0.0/8")), nil, true},
		{"source/host bits are ignored", match.Source(mask("10.9.9.9/8")), nil, true},
		{"source/out", match.Source(mask("11.0.0.0/8")), nil, false},
		{"source/whole address", match.Source(mask("10.0.0.7/32")), nil, true},
		{"source/other address", match.Source(mask("10.0.0.6/32")), nil, false},
		{"source/other family", match.Source(mask("::/1")), nil, false},
		{"source/v4 over a v6 socket", match.Source(mask("10.0.0.0/8")), func(s *subject) {
			s.source = netip.MustParseAddrPort("[::ffff:10.0.0.7]:1")
		}, true},
		{"source/unknown", match.Source(mask("0.0.0.0/1")), unknown, false},
		{"source/unknown, negated", match.Not(match.Source(mask("0.0.0.0/1"))), unknown, true},
		{"source/port", match.SourcePorts(40000, 40000), nil, true},
		{"source/port range", match.SourcePorts(39999, 40001), nil, true},
		{"source/port below", match.SourcePorts(40001, 50000), nil, false},
		{"source/port above", match.SourcePorts(1, 39999), nil, false},
		{"source/port, max 0 is min", match.SourcePorts(40000, 0), nil, true},
		{"source/port, max 0 is only min", match.SourcePorts(39999, 0), nil, false},
		{"source/port, min 0 is from 0", match.SourcePorts(0, 40000), nil, true},
		{"source/port, min 0 ends at max", match.SourcePorts(0, 39999), nil, false},
		{"source/port, unknown", match.SourcePorts(0, 65535), unknown, false},

		{"destination/in", match.Destination(mask("fd00::/16")), nil, true},
		{"destination/out", match.Destination(mask("fe00::/16")), nil, false},
		{"destination/other family", match.Destination(mask("0.0.0.0/1")), nil, false},
		{"destination/unknown", match.Destination(mask("fd00::/16")), unknown, false},
		{"destination/port", match.DestinationPorts(8080, 0), nil, true},
		{"destination/other port", match.DestinationPorts(8081, 0), nil, false},

		{"destination_label/equal", match.DestinationLabel("pod", "web-1"), nil, true},
		{"destination_label/other value", match.DestinationLabel("pod", "web-2"), nil, false},
		{"destination_label/no such key", match.DestinationLabel("zone", "web-1"), nil, false},
		{"destination_label/no labels", match.DestinationLabel("pod", "web-1"), func(s *subject) { s.labels = nil }, false},
		{"route_label/equal", match.RouteLabel("route", "vote"), nil, true},
		{"route_label/other value", match.RouteLabel("route", "list"), nil, false},
		{"route_label/no such key", match.RouteLabel("other", "vote"), nil, false},
		{"route_label/no route", match.RouteLabel("route", "vote"), func(s *subject) { s.route = nil }, false},
		{"route_label/route without labels", match.RouteLabel("route", "vote"), func(s *subject) { s.route = &layer.Route{} }, false},

		{"scheme/equal", match.Scheme("https"), nil, true},
		{"scheme/other", match.Scheme("http"), nil, false},
		{"scheme/absent is http", match.Scheme("http"), func(s *subject) { s.scheme = "" }, true},
		{"scheme/absent is not https", match.Scheme("https"), func(s *subject) { s.scheme = "" }, false},
		{"scheme/unregistered", match.Scheme("coap"), func(s *subject) { s.scheme = "coap" }, true},
		{"scheme/letters", match.Scheme("HTTPS"), nil, true},

		{"method/equal", match.Method("GET"), nil, true},
		{"method/other", match.Method("POST"), nil, false},
		{"method/exact", match.Method("GET"), func(s *subject) { s.method = "get" }, false},
		{"method/unregistered", match.Method("PURGE"), func(s *subject) { s.method = "PURGE" }, true},

		{"authority/exact", match.Authority("web.shop:80"), nil, true},
		{"authority/not exact", match.Authority("web.shop"), nil, false},
		{"authority/prefix", match.AuthorityPrefix("web."), nil, true},
		{"authority/other prefix", match.AuthorityPrefix("shop"), nil, false},
		{"authority/absent, exact", match.Authority(""), func(s *subject) { s.authority = "" }, false},
		{"authority/absent, prefix", match.AuthorityPrefix(""), func(s *subject) { s.authority = "" }, false},
		{"authority/user information is no part", match.Authority("web.shop:80"), func(s *subject) { s.authority = "me:secret@web.shop:80" }, true},

		{"path/exact", match.Path("/api/vote"), nil, true},
		{"path/not exact", match.Path("/api"), nil, false},
		{"path/prefix", match.PathPrefix("/api/"), nil, true},
		{"path/other prefix", match.PathPrefix("/web"), nil, false},
		{"path/empty prefix", match.PathPrefix(""), nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sample()
			if tt.change != nil {
				tt.change(s)
			}
			require.Equal(t, tt.want, s.meets(t, tt.m))
		})
	}
}
