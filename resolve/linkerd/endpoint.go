package linkerd

import (
	"encoding/binary"
	"maps"
	"math"
	"net/netip"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/linkerd/linkerd2-proxy-api/go/net"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/resolve"
)

// endpoint is a WeightedAddr as linkerd's proxy reads it, or false if it has no
// address. setLabels are those of the set that a is in. HTTP/2 parameters and
// the resource reference are not used.
func endpoint(a *destination.WeightedAddr, setLabels map[string]string) (resolve.Endpoint, bool) {
	addr, ok := addrPort(a.GetAddr())
	if !ok {
		return resolve.Endpoint{}, false
	}
	serverName, identity := tlsOf(a.GetTlsIdentity())
	return resolve.Endpoint{
		ID: resolve.ID{
			Addr:       addr,
			Protocol:   protocol(a.GetProtocolHint()),
			ServerName: serverName,
			Identity:   identity,
			Authority:  override(a.GetAuthorityOverride().GetAuthorityOverride()),
			OpaquePort: opaquePort(a.GetProtocolHint().GetOpaqueTransport().GetInboundPort()),
		},
		Weight: a.GetWeight(),
		Labels: labels(setLabels, a.GetMetricLabels()),
	}, true
}

// labels overlays the labels of a set with those of one address. Endpoints
// without any of their own share the map of their set.
func labels(set, own map[string]string) map[string]string {
	switch {
	case len(own) == 0:
		return set
	case len(set) == 0:
		return own
	}
	all := maps.Clone(set)
	maps.Copy(all, own)
	return all
}

// tlsOf returns the server name to ask for and the identity to expect; both or
// none. A DNS-like identity is its own server name unless another is given. A
// URI (SPIFFE) cannot be one: without a server name, there is no TLS. Names are
// not looked at more closely here, for a bad one must fail the handshake and
// not open the way to cleartext.
func tlsOf(id *destination.TlsIdentity) (serverName, identity string) {
	serverName = id.GetServerName().GetName()
	switch id.GetStrategy().(type) {
	case *destination.TlsIdentity_DnsLikeIdentity_:
		identity = id.GetDnsLikeIdentity().GetName()
		if serverName == "" {
			serverName = identity
		}
	case *destination.TlsIdentity_UriLikeIdentity_:
		identity = id.GetUriLikeIdentity().GetUri()
	}
	if serverName == "" || identity == "" {
		return "", ""
	}
	return serverName, identity
}

func protocol(hint *destination.ProtocolHint) resolve.Protocol {
	switch hint.GetProtocol().(type) {
	case *destination.ProtocolHint_H2_:
		return resolve.H2
	case *destination.ProtocolHint_Opaque_:
		return resolve.Opaque
	}
	return resolve.Unknown
}

// opaquePort takes 1 to 65534, as the proxy does.
func opaquePort(port uint32) uint16 {
	if port >= math.MaxUint16 {
		return 0
	}
	return uint16(port)
}

// override is s if it can be put on the wire as it is, and else "".
func override(s string) string {
	if !authority.Valid(s) {
		return ""
	}
	return s
}

// addrPort reads an address, or returns false if it has no IP. Of the port, the
// lower 16 bits count, as in the proxy.
func addrPort(a *net.TcpAddress) (netip.AddrPort, bool) {
	ip, ok := ipAddr(a.GetIp())
	return netip.AddrPortFrom(ip, uint16(a.GetPort())), ok
}

func ipAddr(ip *net.IPAddress) (netip.Addr, bool) {
	switch ip := ip.GetIp().(type) {
	case *net.IPAddress_Ipv4:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], ip.Ipv4)
		return netip.AddrFrom4(b), true
	case *net.IPAddress_Ipv6:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], ip.Ipv6.GetFirst())
		binary.BigEndian.PutUint64(b[8:], ip.Ipv6.GetLast())
		return netip.AddrFrom16(b), true
	}
	return netip.Addr{}, false
}
