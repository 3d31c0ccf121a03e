package tap

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/internal/wire"
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

// naive is the spec read a second time, straight from the message. It is for
// messages that compile.
func naive(m *pb.ObserveRequest_Match, s *subject) bool {
	present := func(ms []*pb.ObserveRequest_Match) []*pb.ObserveRequest_Match {
		return slices.DeleteFunc(slices.Clone(ms), func(m *pb.ObserveRequest_Match) bool { return m.GetMatch() == nil })
	}
	switch m := m.GetMatch().(type) {
	case *pb.ObserveRequest_Match_All:
		return !slices.ContainsFunc(present(m.All.GetMatches()), func(m *pb.ObserveRequest_Match) bool { return !naive(m, s) })
	case *pb.ObserveRequest_Match_Any:
		return slices.ContainsFunc(present(m.Any.GetMatches()), func(m *pb.ObserveRequest_Match) bool { return naive(m, s) })
	case *pb.ObserveRequest_Match_Not:
		return !naive(m.Not, s)
	case *pb.ObserveRequest_Match_Source:
		return naiveTCP(m.Source, s.source)
	case *pb.ObserveRequest_Match_Destination:
		return naiveTCP(m.Destination, s.destination)
	case *pb.ObserveRequest_Match_DestinationLabel:
		v, ok := s.labels[m.DestinationLabel.GetKey()]
		return ok && v == m.DestinationLabel.GetValue()
	case *pb.ObserveRequest_Match_RouteLabel:
		if s.route == nil {
			return false
		}
		v, ok := s.route.Labels[m.RouteLabel.GetKey()]
		return ok && v == m.RouteLabel.GetValue()
	case *pb.ObserveRequest_Match_Http_:
		return naiveHTTP(m.Http, s)
	}
	return false
}

func naiveTCP(m *pb.ObserveRequest_Match_Tcp, a netip.AddrPort) bool {
	if !a.Addr().IsValid() {
		return false
	}
	if r := m.GetPorts(); r != nil {
		lo, hi := r.GetMin(), r.GetMax()
		if hi == 0 {
			hi = lo
		}
		return uint32(a.Port()) >= lo && uint32(a.Port()) <= hi
	}
	ip, _ := wire.IP(m.GetNetmask().GetIp())
	p, err := a.Addr().Unmap().Prefix(int(m.GetNetmask().GetMask()))
	if err != nil || ip.BitLen() != a.Addr().Unmap().BitLen() {
		return false
	}
	want, err := ip.Prefix(int(m.GetNetmask().GetMask()))
	return err == nil && want == p
}

func naiveHTTP(m *pb.ObserveRequest_Match_Http, s *subject) bool {
	str := func(m *pb.ObserveRequest_Match_Http_StringMatch, v string) bool {
		if p, ok := m.GetMatch().(*pb.ObserveRequest_Match_Http_StringMatch_Prefix); ok {
			return strings.HasPrefix(v, p.Prefix)
		}
		return v == m.GetExact()
	}
	switch m := m.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Http_Scheme:
		have := s.scheme
		if have == "" {
			have = "http"
		}
		return strings.EqualFold(have, schemeOf(m.Scheme))
	case *pb.ObserveRequest_Match_Http_Method:
		return s.method == methodOf(m.Method)
	case *pb.ObserveRequest_Match_Http_Authority:
		return s.authority != "" && str(m.Authority, s.authority)
	case *pb.ObserveRequest_Match_Http_Path:
		return str(m.Path, s.path)
	}
	return false
}

// The alphabets are small, so that conditions are met often enough.
var (
	genAddr = rapid.SampledFrom([]netip.AddrPort{
		{}, netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.128.0.1:2"),
		netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[::ffff:10.0.0.1]:3"),
	})
	genMask   = rapid.SampledFrom([]string{"10.0.0.0/8", "10.0.0.0/9", "10.0.0.1/32", "fd00::/8", "fd00::1/128", "::/1"})
	genPort   = rapid.Uint16Range(1, 3)
	genWord   = rapid.SampledFrom([]string{"a", "ab", "b"})
	genScheme = rapid.SampledFrom([]string{"http", "https", "coap"})
	genMethod = rapid.SampledFrom([]string{"GET", "POST", "PURGE"})
)

func genMatch(depth int) *rapid.Generator[*pb.ObserveRequest_Match] {
	return rapid.Custom(func(t *rapid.T) *pb.ObserveRequest_Match {
		kinds := 11
		if depth > 0 {
			kinds = 14
		}
		switch word := genWord.Draw(t, "word"); rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return match.Source(mask(genMask.Draw(t, "mask")))
		case 1:
			return match.Destination(mask(genMask.Draw(t, "mask")))
		case 2:
			lo := genPort.Draw(t, "min")
			return match.SourcePorts(lo, rapid.SampledFrom([]uint16{0, lo, 3}).Draw(t, "max"))
		case 3:
			return match.DestinationPorts(0, genPort.Draw(t, "max"))
		case 4:
			return match.DestinationLabel("k", word)
		case 5:
			return match.RouteLabel("k", word)
		case 6:
			return match.Scheme(genScheme.Draw(t, "scheme"))
		case 7:
			return match.Method(genMethod.Draw(t, "method"))
		case 8:
			return rapid.SampledFrom([]*pb.ObserveRequest_Match{match.Authority(word), match.AuthorityPrefix(word)}).Draw(t, "authority")
		case 9:
			return match.Path(word)
		case 10:
			return match.PathPrefix(word)
		case 11:
			return match.All(rapid.SliceOfN(genMatch(depth-1), 0, 3).Draw(t, "all")...)
		case 12:
			return match.Any(rapid.SliceOfN(genMatch(depth-1), 0, 3).Draw(t, "any")...)
		default:
			return match.Not(genMatch(depth-1).Draw(t, "not"))
		}
	})
}

var genSubject = rapid.Custom(func(t *rapid.T) *subject {
	maybe := func(name string, g *rapid.Generator[string]) string {
		return rapid.OneOf(rapid.Just(""), g).Draw(t, name)
	}
	s := &subject{
		call: call{
			method: genMethod.Draw(t, "method"), scheme: maybe("scheme", genScheme),
			authority: maybe("authority", genWord), path: maybe("path", genWord), source: genAddr.Draw(t, "source"),
		},
		destination: genAddr.Draw(t, "destination"),
	}
	if v := maybe("label", genWord); v != "" {
		s.labels = map[string]string{"k": v}
	}
	if v := maybe("route", genWord); v != "" {
		s.route = &layer.Route{Labels: map[string]string{"k": v}}
	}
	return s
})

// Match trees evaluate as boolean algebra.
func TestMatchIsBooleanAlgebra(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSubject.Draw(t, "request")
		ms := rapid.SliceOfN(genMatch(3), 1, 4).Draw(t, "matches")
		is := func(m *pb.ObserveRequest_Match) bool { return s.meets(t, m) }
		a := ms[0]
		nots := make([]*pb.ObserveRequest_Match, len(ms))
		reversed := slices.Clone(ms)
		slices.Reverse(reversed)
		for i, m := range ms {
			require.Equal(t, naive(m, s), is(m), "as the spec says")
			nots[i] = match.Not(m)
		}
		conj, disj := is(match.All(ms...)), is(match.Any(ms...))

		require.NotEqual(t, is(a), is(match.Not(a)), "excluded middle")
		require.Equal(t, is(a), is(match.Not(match.Not(a))), "double negation")
		require.Equal(t, !conj, is(match.Any(nots...)), "De Morgan")
		require.Equal(t, !disj, is(match.All(nots...)), "De Morgan")
		require.Equal(t, conj, is(match.All(reversed...)), "commutative")
		require.Equal(t, disj, is(match.Any(reversed...)), "commutative")
		require.Equal(t, conj, is(match.All(append(slices.Clone(ms), match.All())...)), "true is neutral in a conjunction")
		require.Equal(t, disj, is(match.Any(append(slices.Clone(ms), match.Any())...)), "false is neutral in a disjunction")
		require.Equal(t, is(a), is(match.All(a, match.Any(append(slices.Clone(ms), a)...))), "absorption")
		require.Equal(t, conj, is(match.All(append(slices.Clone(ms), nil, &pb.ObserveRequest_Match{})...)), "members without a value count for nothing")
	})
}
