// Package caller reads a client's identity from its certificate, and labels the client like
// linkerd's proxy.
package caller

import (
	"crypto/tls"
	"net"
	"net/netip"
)

// Labels returns a client's labels. source is the client's address, and state is nil without TLS.
// With TLS, the label tls is "true", and client_id is the result of [Client] unless that is "".
// Without TLS, the label tls is "loopback" for a loopback address and "no_tls_from_remote" for any
// other address. If state is nil and source is invalid, the result is nil.
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

// Client returns the first DNS-like name or URI in the verified client certificate. It
// returns "" without such a certificate or name.
func Client(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return ""
	}
	if names := Names(state.VerifiedChains[0][0].Extensions); len(names) > 0 {
		return names[0]
	}
	return ""
}

// Addr converts the address of a connection to an AddrPort. It returns the zero AddrPort if
// the address is not an IP address with a port. An IPv4-mapped IPv6 address becomes IPv4.
func Addr(addr net.Addr) netip.AddrPort {
	if addr == nil {
		return netip.AddrPort{}
	}
	parsed, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
}
