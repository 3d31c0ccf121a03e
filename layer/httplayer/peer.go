package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/internal/caller"
)

// SourceLabels returns linkerd's labels of the client of a received request.
// tls is true for TLS, and client_id is then the first DNS-like name or URI of
// the client's verified certificate. Without TLS, tls is loopback or
// no_tls_from_remote. A request that this process makes has no labels.
func (a Accessor) SourceLabels(r *http.Request) map[string]string {
	return caller.Labels(a.Source(r), r.TLS)
}
