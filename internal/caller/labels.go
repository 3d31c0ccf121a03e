// Package caller knows what linkerd's proxy says of who sent a request.
package caller

import (
	"crypto/tls"
	"net/netip"
)

// Labels are those of a client at source, whose connection was state; nil is one
// in clear. The label tls is true if it came by TLS, and client_id then the name
// that the client proved by a verified certificate, if it did: the first that is
// DNS-like or a URI, in the certificate's own order. Without TLS, tls is loopback
// or no_tls_from_remote. A client in clear that is not known has none.
func Labels(source netip.AddrPort, state *tls.ConnectionState) map[string]string {
	switch {
	case state != nil:
		labels := map[string]string{"tls": "true"}
		if chains := state.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 {
			if id := nameOf(chains[0][0]); id != "" {
				labels["client_id"] = id
			}
		}
		return labels
	case !source.IsValid():
		return nil
	case source.Addr().IsLoopback():
		return map[string]string{"tls": "loopback"}
	}
	return map[string]string{"tls": "no_tls_from_remote"}
}
