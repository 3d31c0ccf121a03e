// Package caller knows what linkerd's proxy says of who sent a request, and what can
// be the name of one.
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

// Client is the name that the client of a connection proved by a verified
// certificate, or "". A state of nil is that of a connection in clear.
func Client(state *tls.ConnectionState) string {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return ""
	}
	if names := Names(state.VerifiedChains[0][0].Extensions); len(names) > 0 {
		return names[0]
	}
	return ""
}
