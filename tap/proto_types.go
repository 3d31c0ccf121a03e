package tap

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strings"

	"github.com/linkerd/linkerd2-proxy-api/go/http_types"
	netpb "github.com/linkerd/linkerd2-proxy-api/go/net"
	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
)

func tcpProto(a netip.AddrPort) *netpb.TcpAddress {
	a = plain(a)
	if !a.IsValid() {
		return nil
	}
	ip := &netpb.IPAddress{}
	if a.Addr().Is4() {
		b := a.Addr().As4()
		ip.Ip = &netpb.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}
	} else {
		b := a.Addr().As16()
		ip.Ip = &netpb.IPAddress_Ipv6{Ipv6: &netpb.IPv6{
			First: binary.BigEndian.Uint64(b[:8]),
			Last:  binary.BigEndian.Uint64(b[8:]),
		}}
	}
	return &netpb.TcpAddress{Ip: ip, Port: uint32(a.Port())}
}

// tcpOf drops an address without an IP, and cuts a port to 16 bits, as
// linkerd's proxy does.
func tcpOf(m *netpb.TcpAddress) netip.AddrPort {
	ip, ok := ipOf(m.GetIp())
	if !ok {
		return netip.AddrPort{}
	}
	return plain(netip.AddrPortFrom(ip, uint16(m.GetPort()&math.MaxUint16)))
}

func ipOf(m *netpb.IPAddress) (netip.Addr, bool) {
	switch ip := m.GetIp().(type) {
	case *netpb.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], ip.Ipv4)
		return netip.AddrFrom4(b), true
	case *netpb.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], ip.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], ip.Ipv6.GetLast())
		return netip.AddrFrom16(b), true
	}
	return netip.Addr{}, false
}

func metaProto(labels map[string]string) *pb.TapEvent_EndpointMeta {
	if labels == nil {
		return nil
	}
	return &pb.TapEvent_EndpointMeta{Labels: labelsProto(labels)}
}

func metaOf(m *pb.TapEvent_EndpointMeta) map[string]string {
	if m == nil {
		return nil
	}
	return orEmpty(m.GetLabels())
}

// labelsProto copies, since a message may be kept by its receiver.
func labelsProto(labels map[string]string) map[string]string {
	out := make(map[string]string, len(labels))
	for k, v := range labels {
		out[valid(k)] = valid(v)
	}
	return out
}

func orEmpty(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

func methodProto(name string) *http_types.HttpMethod {
	if name == "" {
		return nil
	}
	if n, ok := http_types.HttpMethod_Registered_value[name]; ok {
		return &http_types.HttpMethod{Type: &http_types.HttpMethod_Registered_{Registered: http_types.HttpMethod_Registered(n)}}
	}
	return &http_types.HttpMethod{Type: &http_types.HttpMethod_Unregistered{Unregistered: valid(name)}}
}

// methodOf returns "" for no method and for a number that has no name.
func methodOf(m *http_types.HttpMethod) string {
	switch m := m.GetType().(type) {
	case *http_types.HttpMethod_Registered_:
		return http_types.HttpMethod_Registered_name[int32(m.Registered)]
	case *http_types.HttpMethod_Unregistered:
		return m.Unregistered
	}
	return ""
}

func schemeProto(name string) *http_types.Scheme {
	switch name {
	case "":
		return nil
	case "http":
		return &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTP}}
	case "https":
		return &http_types.Scheme{Type: &http_types.Scheme_Registered_{Registered: http_types.Scheme_HTTPS}}
	}
	return &http_types.Scheme{Type: &http_types.Scheme_Unregistered{Unregistered: valid(name)}}
}

// schemeOf returns "" for no scheme and for a number that has no name.
func schemeOf(m *http_types.Scheme) string {
	switch m := m.GetType().(type) {
	case *http_types.Scheme_Registered_:
		return strings.ToLower(http_types.Scheme_Registered_name[int32(m.Registered)])
	case *http_types.Scheme_Unregistered:
		return m.Unregistered
	}
	return ""
}
