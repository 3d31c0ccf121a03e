package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/internal/caller"
)

// SourceLabels returns what linkerd's proxy says of the client of a request that
// a server received. The label tls is true if it came by TLS, and client_id then
// the name that the client proved by a verified certificate, if it did: the first
// that is DNS-like or a URI, in the certificate's own order. Without TLS, tls is
// loopback or no_tls_from_remote. A request of our own has none.
func (a Accessor) SourceLabels(r *http.Request) map[string]string {
	return caller.Labels(a.Source(r), r.TLS)
}
