package tap

import (
	"fmt"
	"math"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/internal/wire"
	"github.com/gotower/gotower/tap/tappb"
)

// maxConditions is how many conditions a match may contain, and maxMatchBytes is its maximum
// size. They limit the cost that one watcher adds to every request.
const (
	maxConditions = 1000
	maxMatchBytes = 64 << 10
)

// invalid reports a match that cannot be compiled. It says where the invalid field is, such as
// ".all[1].source", and what is wrong with it.
type invalid struct{ where, what string }

func (e *invalid) Error() string { return "match" + e.where + ": " + e.what }

// bad returns an error about the field where of a match.
func bad(where, format string, args ...any) error {
	return &invalid{where, fmt.Sprintf(format, args...)}
}

// compile validates m, a match of linkerd's tap API, and converts it to a condition, which can be
// evaluated fast. An error names the invalid field of m.
func compile(m *pb.ObserveRequest_Match) (*condition, error) {
	if m.GetMatch() == nil {
		return nil, bad("", "missing")
	}
	if proto.Size(m) > maxMatchBytes {
		return nil, errTooLarge
	}
	k := compiler{left: maxConditions}
	c, err := k.match("", m)
	if err != nil {
		return nil, err
	}
	// Only the root needs this: it is read before the whole condition is evaluated.
	c.reads = c.needs()
	return &c, nil
}

var errTooLarge = bad("", "more than %d KiB", maxMatchBytes>>10)

// compiler compiles one match. left is how many more conditions it may contain.
type compiler struct{ left int }

// match compiles m. where is the path of m in the whole match, for errors.
func (k *compiler) match(where string, m *pb.ObserveRequest_Match) (condition, error) {
	if k.left--; k.left < 0 {
		return condition{}, bad("", "more than %d conditions", maxConditions)
	}
	switch m := m.GetMatch().(type) {
	case *pb.ObserveRequest_Match_All:
		return k.seq(opAll, where+".all", m.All)
	case *pb.ObserveRequest_Match_Any:
		return k.seq(opAny, where+".any", m.Any)
	case *pb.ObserveRequest_Match_Not:
		sub, err := k.match(where+".not", m.Not)
		return condition{op: opNot, subs: []condition{sub}}, err
	case *pb.ObserveRequest_Match_Source:
		return tcpMatch(where+".source", m.Source, opSource)
	case *pb.ObserveRequest_Match_Destination:
		return tcpMatch(where+".destination", m.Destination, opDestination)
	case *pb.ObserveRequest_Match_DestinationLabel:
		return labelMatch(where+".destination_label", opDestinationLabel, m.DestinationLabel)
	case *pb.ObserveRequest_Match_RouteLabel:
		return labelMatch(where+".route_label", opRouteLabel, m.RouteLabel)
	case *pb.ObserveRequest_Match_Http_:
		return httpMatch(where+".http", m.Http)
	}
	return condition{}, bad(where, "missing")
}

// seq compiles seq's members into one condition with the operator op, which is opAll or opAny.
// where is the members' path in the match, for errors. Members without a value are skipped, as in
// linkerd's proxy.
func (k *compiler) seq(op op, where string, seq *pb.ObserveRequest_Match_Seq) (condition, error) {
	c := condition{op: op}
	for i, m := range seq.GetMatches() {
		if m.GetMatch() == nil {
			continue
		}
		sub, err := k.match(fmt.Sprintf("%s[%d]", where, i), m)
		if err != nil {
			return condition{}, err
		}
		c.subs = append(c.subs, sub)
	}
	return c, nil
}

// filter compiles a watcher's condition: a request must match m, if that is not nil, and every member
// of headers. Errors are of type rejection.
func (r *Registry) filter(m *pb.ObserveRequest_Match, headers []*tappb.HeaderMatch) (*condition, error) {
	size := proto.Size(m)
	for _, h := range headers {
		size += proto.Size(h)
	}
	if size > maxMatchBytes {
		return nil, reject(codes.InvalidArgument, errTooLarge)
	}
	k := compiler{left: maxConditions}
	all := condition{op: opAll}
	if m.GetMatch() != nil {
		c, err := k.match("", m)
		if err != nil {
			return nil, reject(codes.InvalidArgument, err)
		}
		all.subs = append(all.subs, c)
	}
	if len(headers) > k.left {
		return nil, reject(codes.InvalidArgument, bad("", "more than %d conditions", maxConditions))
	}
	for i, h := range headers {
		c, err := headerMatch(fmt.Sprintf("headers[%d]", i), h)
		if err != nil {
			return nil, reject(codes.InvalidArgument, err)
		}
		// Otherwise a client could guess the value prefix by prefix.
		if c.op == opHeader && r.secret(c.key) {
			return nil, reject(codes.PermissionDenied, fmt.Errorf(
				"headers[%d]: the value of %s is withheld: match only its presence", i, strings.ToLower(c.key)))
		}
		c.mask = r.mask(c.key)
		all.subs = append(all.subs, c)
	}
	// A single condition need not be wrapped in opAll.
	if len(all.subs) == 1 {
		all = all.subs[0]
	}
	all.reads = all.needs()
	return &all, nil
}

// headerMatch compiles h, a condition on a header field.
func headerMatch(where string, h *tappb.HeaderMatch) (condition, error) {
	if !httpguts.ValidHeaderFieldName(h.GetName()) {
		return condition{}, fmt.Errorf("%s.name: missing or not a header name: %q", where, h.GetName())
	}
	c := condition{op: opHeader, key: textproto.CanonicalMIMEHeaderKey(h.GetName())}
	switch v := h.GetValue().(type) {
	case *tappb.HeaderMatch_Exact:
		c.text = v.Exact
	case *tappb.HeaderMatch_Prefix:
		c.text, c.starts = v.Prefix, true
	case *tappb.HeaderMatch_Present:
		if c.op = opHeaderPresent; !v.Present {
			return condition{op: opNot, subs: []condition{c}}, nil
		}
	default:
		return condition{}, fmt.Errorf("%s: neither exact nor prefix nor present", where)
	}
	return c, nil
}

// labelMatch compiles l, a condition on a label of the destination or the route, depending on op.
func labelMatch(where string, op op, l *pb.ObserveRequest_Match_Label) (condition, error) {
	switch {
	case l.GetKey() == "":
		return condition{}, bad(where+".key", "empty")
	case l.GetValue() == "":
		return condition{}, bad(where+".value", "empty")
	}
	return condition{op: op, key: l.GetKey(), text: l.GetValue()}, nil
}

// tcpMatch compiles t, a condition on an address, that of the source or the destination depending on
// op.
func tcpMatch(where string, t *pb.ObserveRequest_Match_Tcp, op op) (condition, error) {
	switch m := t.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Tcp_Netmask_:
		return netmask(where+".netmask", op, m.Netmask)
	case *pb.ObserveRequest_Match_Tcp_Ports:
		return portRange(where+".ports", op, m.Ports)
	}
	return condition{}, bad(where, "neither netmask nor ports")
}

// netmask converts a condition that an address is in the network m. op is opSource or opDestination: it
// selects the address to compare. where is the path of m in the message, for an error.
func netmask(where string, op op, m *pb.ObserveRequest_Match_Tcp_Netmask) (condition, error) {
	ip, err := wire.IP(m.GetIp())
	if err != nil {
		return condition{}, bad(where+".ip", "missing")
	}
	if bits := m.GetMask(); bits == 0 || bits > uint32(ip.BitLen()) {
		return condition{}, bad(where+".mask", "%d is not from 1 to %d", bits, ip.BitLen())
	}
	return condition{op: op, prefix: netip.PrefixFrom(ip, int(m.GetMask()))}, nil
}

// portRange converts a condition that the port of an address is in the range r. op is opSource or
// opDestination: it selects the address to compare. where is the path of r in the message, for an error.
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
		hi = lo // a minimum without a maximum selects one port
	case lo > hi:
		return condition{}, bad(where, "min %d is above max %d", lo, hi)
	}
	return condition{op: op, lo: uint16(lo), hi: uint16(hi)}, nil
}

// httpMatch converts a condition on an HTTP request. where is its place in the message, for an error.
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

// schemeMatch converts a condition on the scheme.
func schemeMatch(where string, s *http_types.Scheme) (condition, error) {
	name := schemeOf(s)
	if !httpguts.ValidHeaderFieldName(name) { // a scheme and a method are tokens, too
		return condition{}, bad(where, "missing or not a scheme: %q", name)
	}
	return condition{op: opScheme, text: name}, nil
}

// methodMatch converts a condition on the method.
func methodMatch(where string, m *http_types.HttpMethod) (condition, error) {
	name := methodOf(m)
	if !httpguts.ValidHeaderFieldName(name) {
		return condition{}, bad(where, "missing or not a method: %q", name)
	}
	return condition{op: opMethod, text: name}, nil
}

// stringMatch converts a condition on the authority or the path, as op says.
func stringMatch(where string, s *pb.ObserveRequest_Match_Http_StringMatch, op op) (condition, error) {
	switch m := s.GetMatch().(type) {
	case *pb.ObserveRequest_Match_Http_StringMatch_Exact:
		return condition{op: op, text: m.Exact}, nil
	case *pb.ObserveRequest_Match_Http_StringMatch_Prefix:
		return condition{op: op, text: m.Prefix, starts: true}, nil
	}
	return condition{}, bad(where, "neither exact nor prefix")
}
