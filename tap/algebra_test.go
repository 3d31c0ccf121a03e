package tap

import (
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
