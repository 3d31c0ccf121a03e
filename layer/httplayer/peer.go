package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/internal/caller"
)

// SourceLabels returns linkerd's labels for the client of a received request. With TLS, the
// label tls is true, and client_id is the first DNS-like name or URI in the verified client
// certificate. Without TLS, the label tls is loopback for a loopback address, and otherwise
// no_tls_from_remote. The result is empty for a request that this process makes.
func (a Accessor) SourceLabels(r *http.Request) map[string]string {
	return caller.Labels(a.Source(r), r.TLS)
}
