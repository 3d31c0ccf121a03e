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

func metaOf(m *pb.TapEvent_EndpointMeta) map[string]string {
	if m == nil {
		return nil
	}
	return orEmpty(m.GetLabels())
}

func orEmpty(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
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
