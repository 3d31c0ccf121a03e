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

// only returns a handler that calls next for the given methods and responds to others
// with 405.
func only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			notAllowed(w, methods...)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func notAllowed(w http.ResponseWriter, methods ...string) {
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeText(w, http.StatusMethodNotAllowed, "only "+strings.Join(methods, ", ")+"\n")
}

// local returns a handler that calls next for direct requests from this machine and
// responds to others with 403.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := view.Loopback(r); err != nil {
			writeText(w, http.StatusForbidden, "requests are only permitted from localhost: "+err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded returns a handler that responds with 403 to browser pages of other origins and
// calls next for other requests.
func (h *Handler) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(r); err != nil {
			writeText(w, http.StatusForbidden, err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

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

// isAllowedHost reports whether host, with or without a port, is localhost, an address or
// one of Config.Hosts. Other names may resolve to this machine by DNS rebinding. A
// missing host is allowed, because only HTTP/1.0 clients that are not browsers omit it.
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
