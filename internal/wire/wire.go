// Package wire converts endpoints of linkerd's API as linkerd's proxy does. It rejects
// addresses that cannot be connected to.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/authority"
)

// Addr converts an address. It uses the lower 16 bits of the port, as linkerd's proxy
// does, and converts an IPv4-mapped IPv6 address to IPv4. Port 0 and the unspecified
// address are errors, because they cannot be connected to.
func Addr(a *net.TcpAddress) (netip.AddrPort, error) {
	var ip netip.Addr
	switch from := a.GetIp().GetIp().(type) {
	case *net.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], from.Ipv4)
		ip = netip.AddrFrom4(b)
	case *net.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], from.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], from.Ipv6.GetLast())
		ip = netip.AddrFrom16(b).Unmap()
	default:
		return netip.AddrPort{}, errors.New("no IP address")
	}
	addr := netip.AddrPortFrom(ip, uint16(a.GetPort()))
	switch {
	case addr.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%v has no port", addr)
	case ip.IsUnspecified():
		return netip.AddrPort{}, fmt.Errorf("%v: the unspecified address cannot be connected to", addr)
	}
	return addr, nil
}

// TLS returns the TLS server name and the expected identity. Both are "" for cleartext.
// The default server name of a DNS-like identity is the identity. For a URI (SPIFFE)
// without a server name, the result is cleartext and an error.
//
// Names are not validated, because an invalid name must cause a failed handshake and
// not cleartext.
func TLS(id *destination.TlsIdentity) (serverName, identity string, err error) {
	serverName = id.GetServerName().GetName()
	switch of := id.GetStrategy().(type) {
	case *destination.TlsIdentity_DnsLikeIdentity_:
		identity = of.DnsLikeIdentity.GetName()
		if serverName == "" {
			serverName = identity
		}
	case *destination.TlsIdentity_UriLikeIdentity_:
		identity = of.UriLikeIdentity.GetUri()
	}
	switch {
	case id == nil:
		return "", "", nil
	case identity == "":
		return "", "", errors.New("TLS identity without a name or of an unknown kind: cleartext")
	case serverName == "":
		return "", "", fmt.Errorf("TLS identity %q is a URI without a server name: cleartext", identity)
	}
	return serverName, identity, nil
}

// OpaquePort returns the port for opaque transport, 1 to 65534 as in linkerd's proxy,
// or 0 if there is none.
func OpaquePort(hint *destination.ProtocolHint) uint16 {
	port := hint.GetOpaqueTransport().GetInboundPort()
	if port >= math.MaxUint16 {
		return 0
	}
	return uint16(port)
}

// KeepAlive returns the interval between PINGs and the timeout of their answers. Unless
// both are positive, it returns 0 and 0, which mean no PING. linkerd's while_idle is
// ignored: PINGs are also sent while no request is open.
func KeepAlive(a *destination.WeightedAddr) (interval, timeout time.Duration) {
	keepAlive := a.GetHttp2().GetKeepAlive()
	interval, timeout = positive(keepAlive.GetInterval()), positive(keepAlive.GetTimeout())
	if interval == 0 || timeout == 0 {
		return 0, 0
	}
	return interval, timeout
}

// positive returns d if it is a positive duration, otherwise 0.
func positive(d *durationpb.Duration) time.Duration {
	if !d.IsValid() {
		return 0
	}
	return max(d.AsDuration(), 0)
}

// Authority returns the authority that replaces that of a request. It returns ""
// without a valid one.
func Authority(a *destination.WeightedAddr) string {
	override := a.GetAuthorityOverride().GetAuthorityOverride()
	if !authority.Valid(override) {
		return ""
	}
	return override
}
