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

// only returns a handler that calls next for requests with one of the given methods. It
// responds to other requests with 405.
func only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			notAllowed(w, methods...)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// notAllowed responds with 405 and the header Allow, which contains the given methods.
func notAllowed(w http.ResponseWriter, methods ...string) {
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeText(w, http.StatusMethodNotAllowed, "only "+strings.Join(methods, ", ")+"\n")
}

// local returns a handler that calls next for requests from this machine that no proxy
// has forwarded. It responds with 403 to other requests.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := view.Loopback(r); err != nil {
			writeText(w, http.StatusForbidden, "requests are only permitted from localhost: "+err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded returns a handler for paths with restricted data. It calls next if
// [Handler.permit] returns nil. Otherwise it responds with 403 and the error of permit.
func (h *Handler) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(r); err != nil {
			writeText(w, http.StatusForbidden, err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// permit returns an error if a browser page from another origin sent r, or if the Host of r
// is not allowed.
func (h *Handler) permit(r *http.Request) error {
	if r.Host != "" && !authority.IsOwn(r.Host, h.config.Hosts) { // browsers send a Host
		return fmt.Errorf("host %q is not allowed: use localhost or an address", r.Host)
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" && site != "none" {
		return fmt.Errorf("a %s page is not allowed", site)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("a page of %q is not allowed", origin)
		}
	}
	return nil
}
