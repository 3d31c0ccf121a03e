package identity

import (
	"crypto/tls"

	"github.com/gotower/gotower/internal/caller"
)

// PeerIdentity returns who the client of a connection to a [Identity.Server] proved to
// be; not ok if it showed no certificate. Of a certificate with several names
// that is the first, DNS-like or URI, in the certificate's own order, as in
// linkerd's proxy; what is neither is passed over. A DNS-like name may come in
// any case.
//
// Give it what tcplayer.TLSState returns of a net.Conn, the TLS of an
// http.Request, or the State of gRPC's credentials.TLSInfo.
func PeerIdentity(state tls.ConnectionState) (name string, ok bool) {
	name = caller.Client(&state)
	return name, name != ""
}
