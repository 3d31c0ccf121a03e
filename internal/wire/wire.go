// Package wire converts endpoints in messages of linkerd's API as linkerd's proxy does. It
// rejects addresses to which a connection is impossible.
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

// IP converts an IP address from a message of linkerd's API. It returns an error if a is empty. An IPv4-mapped IPv6
// address stays IPv6.
func IP(a *net.IPAddress) (netip.Addr, error) {
	switch ip := a.GetIp().(type) {
	case *net.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], ip.Ipv4)
		return netip.AddrFrom4(b), nil
	case *net.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], ip.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], ip.Ipv6.GetLast())
		return netip.AddrFrom16(b), nil
	}
	return netip.Addr{}, errors.New("no IP address")
}

// Addr converts an address with a port from a message of linkerd's API. It uses the lower 16 bits of the port, as
// linkerd's proxy does, and converts an IPv4-mapped IPv6 address to IPv4. Port 0 and the unspecified address are
// errors, because a connection to them is impossible.
func Addr(a *net.TcpAddress) (netip.AddrPort, error) {
	ip, err := IP(a.GetIp())
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip = ip.Unmap()
	addr := netip.AddrPortFrom(ip, uint16(a.GetPort()))
	switch {
	case addr.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("%v has no port", addr)
	case ip.IsUnspecified():
		return netip.AddrPort{}, fmt.Errorf("%v: the unspecified address cannot be connected to", addr)
	}
	return addr, nil
}

// TCP converts a valid address to a message of linkerd's API. An IPv4-mapped IPv6 address becomes IPv4.
func TCP(addr netip.AddrPort) *net.TcpAddress {
	return &net.TcpAddress{Ip: FromIP(addr.Addr().Unmap()), Port: uint32(addr.Port())}
}

// FromIP converts a valid IP address to a message of linkerd's API. It is the inverse of IP.
func FromIP(ip netip.Addr) *net.IPAddress {
	if ip.Is4() {
		b := ip.As4()
		return &net.IPAddress{Ip: &net.IPAddress_Ipv4{Ipv4: binary.BigEndian.Uint32(b[:])}}
	}
	b := ip.As16()
	return &net.IPAddress{Ip: &net.IPAddress_Ipv6{Ipv6: &net.IPv6{
		First: binary.BigEndian.Uint64(b[:8]), Last: binary.BigEndian.Uint64(b[8:]),
	}}}
}

// TLS returns an endpoint's TLS server name and expected identity. Both are "" for cleartext (id
// is nil). If id sets no server name, a DNS identity is also the server name. TLS returns an
// error if id contains no identity, or a URI identity (SPIFFE) without a server name. After an
// error, both names are also "".
//
// TLS does not validate names, because an invalid name must cause a failed handshake, not
// cleartext.
func TLS(id *destination.TlsIdentity) (serverName, identity string, err error) {
	serverName = id.GetServerName().GetName()
	switch strategy := id.GetStrategy().(type) {
	case *destination.TlsIdentity_DnsLikeIdentity_:
		identity = strategy.DnsLikeIdentity.GetName()
		if serverName == "" {
			serverName = identity
		}
	case *destination.TlsIdentity_UriLikeIdentity_:
		identity = strategy.UriLikeIdentity.GetUri()
	}
	// A nil id means cleartext. Any other must say how to verify the endpoint.
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

// OpaquePort returns the port at which an endpoint accepts opaque transport, or 0 if hint names
// none. A valid port is 1 to 65534, as in linkerd's proxy.
func OpaquePort(hint *destination.ProtocolHint) uint16 {
	port := hint.GetOpaqueTransport().GetInboundPort()
	if port >= math.MaxUint16 {
		return 0
	}
	return uint16(port)
}

// KeepAlive returns the interval between PINGs, the timeout of their answers, and whether PINGs are
// also sent while no request is open. If a duration is missing or not positive, it returns 0, 0 and
// false, which mean no PING.
func KeepAlive(a *destination.WeightedAddr) (interval, timeout time.Duration, whileIdle bool) {
	keepAlive := a.GetHttp2().GetKeepAlive()
	interval = positive(keepAlive.GetInterval())
	timeout = positive(keepAlive.GetTimeout())
	if interval == 0 || timeout == 0 {
		return 0, 0, false
	}
	return interval, timeout, keepAlive.GetWhileIdle()
}

// positive returns d if it is a positive duration, otherwise 0.
func positive(d *durationpb.Duration) time.Duration {
	if !d.IsValid() {
		return 0
	}
	return max(d.AsDuration(), 0)
}

// Authority returns the authority that requests to the endpoint must carry instead of their own.
// It returns "" if the endpoint specifies no authority or an invalid one.
func Authority(a *destination.WeightedAddr) string {
	override := a.GetAuthorityOverride().GetAuthorityOverride()
	if !authority.Valid(override) {
		return ""
	}
	return override
}
