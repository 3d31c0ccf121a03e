// Package caller reads the identity of a client and returns its labels as in linkerd's proxy.
package caller

import (
	"crypto/tls"
	"net"
	"net/netip"
)

// Labels returns the labels of a client at source. state is nil for cleartext. With TLS, tls is
// "true", and client_id is the result of [Client] unless that is "". Without TLS, tls is
// "loopback" or "no_tls_from_remote". A cleartext client without an address has no labels.
func Labels(source netip.AddrPort, state *tls.ConnectionState) map[string]string {
	switch {
	case state != nil:
		labels := map[string]string{"tls": "true"}
		if id := Client(state); id != "" {
			labels["client_id"] = id
		}
		return labels
	case !source.IsValid():
		return nil
	case source.Addr().IsLoopback():
		return map[string]string{"tls": "loopback"}
	}
	return map[string]string{"tls": "no_tls_from_remote"}
}

// Client returns the first name of the verified client certificate, or "".
func Client(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return ""
	}
	if names := Names(state.VerifiedChains[0][0].Extensions); len(names) > 0 {
		return names[0]
	}
	return ""
}

// Addr returns the address of a connection, or the zero AddrPort if it is not an IP address.
// An IPv4-mapped IPv6 address becomes IPv4.
func Addr(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	addr, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}
