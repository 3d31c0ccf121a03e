package linkerd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/profiles"
)

// convertEndpoint reads the one endpoint of a profile as linkerd's proxy does.
// Without an address there is none. HTTP/2 parameters and the resource
// reference are not used.
func convertEndpoint(m *destination.WeightedAddr) (*profiles.Endpoint, error) {
	addr, err := convertAddr(m.GetAddr())
	if err != nil {
		return nil, err
	}
	e := &profiles.Endpoint{
		Addr: addr, Labels: m.GetMetricLabels(), Weight: m.GetWeight(),
		Protocol: convertProtocol(m.GetProtocolHint()),
	}
	if addr.Port() == 0 {
		return nil, fmt.Errorf("%v has no port", addr)
	}
	e.ServerName, e.Identity = convertIdentity(m.GetTlsIdentity())
	// The proxy takes 1 to 65534.
	if port := m.GetProtocolHint().GetOpaqueTransport().GetInboundPort(); port < 1<<16-1 {
		e.OpaquePort = uint16(port)
	}
	if override := m.GetAuthorityOverride().GetAuthorityOverride(); authority.Valid(override) {
		e.Authority = override
	}
	return e, nil
}

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

// convertIdentity returns both names, or none, which is cleartext. A name of
// DNS is asked for as it is, unless the controller says what to ask for; a URI
// cannot be, so that without that there is no TLS. What is no name at all must
// fail the handshake, not open the way to cleartext, and is kept.
func convertIdentity(m *destination.TlsIdentity) (serverName, identity string) {
	serverName = m.GetServerName().GetName()
	if id, ok := m.GetStrategy().(*destination.TlsIdentity_DnsLikeIdentity_); ok {
		identity = id.DnsLikeIdentity.GetName()
		if serverName == "" {
			serverName = identity
		}
	} else {
		identity = m.GetUriLikeIdentity().GetUri()
	}
	if serverName == "" || identity == "" {
		return "", ""
	}
	return serverName, identity
}

func convertProtocol(hint *destination.ProtocolHint) profiles.Protocol {
	switch hint.GetProtocol().(type) {
	case *destination.ProtocolHint_H2_:
		return profiles.H2Protocol
	case *destination.ProtocolHint_Opaque_:
		return profiles.OpaqueProtocol
	}
	return profiles.UnknownProtocol
}
