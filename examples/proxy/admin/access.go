package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/tap/view"
)

// only returns a handler that passes requests with one of the given methods to next, and rejects
// all others with 405.
func only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			notAllowed(w, methods...)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notAllowed responds with 405 and lists methods in the Allow header.
func notAllowed(w http.ResponseWriter, methods ...string) {
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeText(w, http.StatusMethodNotAllowed, "only "+strings.Join(methods, ", ")+"\n")
}

// local returns a handler that passes requests from this machine to next, unless a proxy has
// forwarded them. It rejects all others with 403.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := view.Loopback(r); err != nil {
			writeText(w, http.StatusForbidden, "requests are only permitted from localhost: "+err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded protects paths that change the proxy or show its internals against web pages of other sites. It passes
// requests that [Handler.permit] accepts to next, and rejects all others with 403.
func (h *Handler) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(r); err != nil {
			writeText(w, http.StatusForbidden, err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// permit returns an error if r comes from a browser page with another origin, or if its Host is not
// allowed.
func (h *Handler) permit(r *http.Request) error {
	if r.Host != "" && !authority.IsOwn(r.Host, h.config.Hosts) { // browsers send a Host
		return fmt.Errorf("host %q is not allowed: use localhost or an address", r.Host)
	}
	// Browsers say in Sec-Fetch-Site how the page relates to this server. "none" is an address that the user typed.
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" && site != "none" {
		return fmt.Errorf("a %s page is not allowed", site)
	}
	// Older browsers only send Origin. It must name the host to which the request is addressed.
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("a page of %q is not allowed", origin)
		}
	}
	return nil
}
