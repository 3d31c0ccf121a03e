package linkerd

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/net"
)

// convertAddr reads an address. A port is cut to its low 16 bits, as linkerd's
// proxy does it.
func convertAddr(a *net.TcpAddress) (netip.AddrPort, error) {
	port := uint16(a.GetPort())
	switch ip := a.GetIp().GetIp().(type) {
	case *net.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], ip.Ipv4)
		return netip.AddrPortFrom(netip.AddrFrom4(b), port), nil
	case *net.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], ip.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], ip.Ipv6.GetLast())
		return netip.AddrPortFrom(netip.AddrFrom16(b), port), nil
	}
	return netip.AddrPort{}, errors.New("no IP address")
}
