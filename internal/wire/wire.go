// Package wire reads what linkerd's API says of an endpoint, as linkerd's proxy
// does but for addresses that nobody can be reached at.
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

// Addr reads an address. Of the port, the lower 16 bits count, as in the proxy.
// An IPv4 address in its IPv6 form is an IPv4 address. Port 0 is an error, and so
// is the unspecified address, which connects to the caller's own host.
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
		return netip.AddrPort{}, fmt.Errorf("%v: the unspecified address is for listening", addr)
	}
	return addr, nil
}

// TLS returns the server name to ask for and the identity to expect; both or
// none, which is cleartext. A DNS-like identity is its own server name unless
// another is given. A URI (SPIFFE) cannot be one: without a server name, there is
// no TLS. Names are not looked at more closely, for a bad one must fail the
// handshake and not open the way to cleartext.
//
// An error says why what there is of an identity is cleartext.
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
		return "", "", errors.New("a TLS identity without a name, or of a kind that is not known: cleartext")
	case serverName == "":
		return "", "", fmt.Errorf("the TLS identity %q is a URI, and has no server name: cleartext", identity)
	}
	return serverName, identity, nil
}

// OpaquePort is the port that takes opaque transport, 1 to 65534 as the proxy
// takes it; 0 is none.
func OpaquePort(hint *destination.ProtocolHint) uint16 {
	port := hint.GetOpaqueTransport().GetInboundPort()
	if port >= math.MaxUint16 {
		return 0
	}
	return uint16(port)
}

// KeepAlive returns the interval between PINGs and the timeout of their answers; 0
// and 0 mean no PING, also unless both are positive durations. linkerd's while_idle
// is ignored: PINGs are also sent while no request is open.
func KeepAlive(a *destination.WeightedAddr) (interval, timeout time.Duration) {
	keepAlive := a.GetHttp2().GetKeepAlive()
	interval, timeout = positive(keepAlive.GetInterval()), positive(keepAlive.GetTimeout())
	if interval == 0 || timeout == 0 {
		return 0, 0
	}
	return interval, timeout
}

// positive returns 0 for what is not a positive duration.
func positive(d *durationpb.Duration) time.Duration {
	if !d.IsValid() {
		return 0
	}
	return max(d.AsDuration(), 0)
}

// Authority is what to send instead of the authority of a request; "" is none,
// and so is what cannot be sent as it is.
func Authority(a *destination.WeightedAddr) string {
	override := a.GetAuthorityOverride().GetAuthorityOverride()
	if !authority.Valid(override) {
		return ""
	}
	return override
}
