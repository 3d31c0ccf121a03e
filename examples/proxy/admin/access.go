package admin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

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
	if !h.isAllowedHost(r.Host) {
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

// isAllowedHost reports whether host is localhost, an IP address or one of Config.Hosts,
// with or without a port. Other names are rejected, because by DNS rebinding a page can
// make its own name resolve to this machine. An empty host is allowed, because it cannot
// come from a browser.
func (h *Handler) isAllowedHost(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" {
		return true
	}
	return slices.ContainsFunc(h.config.Hosts, func(ours string) bool { return strings.EqualFold(ours, name) })
}
