package tap

import (
	"math"
	"net/netip"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
)

func labelMatch(where string, op op, l *pb.ObserveRequest_Match_Label) (condition, error) {
	switch {
	case l.GetKey() == "":
		return condition{}, bad(where+".key", "empty")
	case l.GetValue() == "":
		return condition{}, bad(where+".value", "empty")
	}
	return condition{op: op, key: l.GetKey(), text: l.GetValue()}, nil
}

func tcpMatch(where string, t *pb.ObserveRequest_Match_Tcp, op op) (condition, error) {
	switch m := t.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Tcp_Netmask_:
		return netmask(where+".netmask", op, m.Netmask)
	case *pb.ObserveRequest_Match_Tcp_Ports:
		return portRange(where+".ports", op, m.Ports)
	}
	return condition{}, bad(where, "neither netmask nor ports")
}

func netmask(where string, op op, m *pb.ObserveRequest_Match_Tcp_Netmask) (condition, error) {
	ip, ok := ipOf(m.GetIp())
	if !ok {
		return condition{}, bad(where+".ip", "missing")
	}
	if bits := m.GetMask(); bits == 0 || bits > uint32(ip.BitLen()) {
		return condition{}, bad(where+".mask", "%d is not from 1 to %d", bits, ip.BitLen())
	}
	return condition{op: op, prefix: netip.PrefixFrom(ip, int(m.GetMask()))}, nil
}

func portRange(where string, op op, r *pb.ObserveRequest_Match_Tcp_PortRange) (condition, error) {
	lo, hi := r.GetMin(), r.GetMax()
	switch {
	case lo == 0 && hi == 0:
		return condition{}, bad(where, "neither min nor max")
	case lo > math.MaxUint16:
		return condition{}, bad(where+".min", "%d is not a port", lo)
	case hi > math.MaxUint16:
		return condition{}, bad(where+".max", "%d is not a port", hi)
	case hi == 0:
		hi = lo // a minimum alone is one port; a maximum alone is not
	case lo > hi:
		return condition{}, bad(where, "min %d is above max %d", lo, hi)
	}
	return condition{op: op, lo: uint16(lo), hi: uint16(hi)}, nil
}

func httpMatch(where string, h *pb.ObserveRequest_Match_Http) (condition, error) {
	switch m := h.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Http_Scheme:
		return schemeMatch(where+".scheme", m.Scheme)
	case *pb.ObserveRequest_Match_Http_Method:
		return methodMatch(where+".method", m.Method)
	case *pb.ObserveRequest_Match_Http_Authority:
		return stringMatch(where+".authority", m.Authority, opAuthority)
	case *pb.ObserveRequest_Match_Http_Path:
		return stringMatch(where+".path", m.Path, opPath)
	}
	return condition{}, bad(where, "missing")
}

func schemeMatch(where string, s *http_types.Scheme) (condition, error) {
	name := schemeOf(s)
	if !isToken(name) {
		return condition{}, bad(where, "missing or not a scheme: %q", name)
	}
	return condition{op: opScheme, text: name}, nil
}

func methodMatch(where string, m *http_types.HttpMethod) (condition, error) {
	name := methodOf(m)
	if !isToken(name) {
		return condition{}, bad(where, "missing or not a method: %q", name)
	}
	return condition{op: opMethod, text: name}, nil
}

func stringMatch(where string, s *pb.ObserveRequest_Match_Http_StringMatch, op op) (condition, error) {
	switch m := s.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Http_StringMatch_Exact:
		return condition{op: op, text: m.Exact}, nil
	case *pb.ObserveRequest_Match_Http_StringMatch_Prefix:
		return condition{op: op, text: m.Prefix, starts: true}, nil
	}
	return condition{}, bad(where, "neither exact nor prefix")
}

// isToken reports whether s is a token of RFC 9110 §5.6.2, as methods are;
// schemes are narrower still, but what is no token is surely neither.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}) < 0
}
