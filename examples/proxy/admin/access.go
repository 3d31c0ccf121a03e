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

// only answers other methods with 405.
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
	plain(w, http.StatusMethodNotAllowed, "only "+strings.Join(methods, ", ")+"\n")
}

// local answers clients of other machines with 403, and those whose request was
// forwarded from who knows where.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := view.Loopback(r); err != nil {
			plain(w, http.StatusForbidden, "requests are only permitted from localhost: "+err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded answers the pages of other origins with 403.
func (h *Handler) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(r); err != nil {
			plain(w, http.StatusForbidden, err.Error()+"\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (h *Handler) permit(r *http.Request) error {
	if !h.isOurs(r.Host) {
		return fmt.Errorf("the host %q is none of ours: use localhost or an address", r.Host)
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" && site != "none" {
		return fmt.Errorf("a page that is %s may not ask", site)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("a page of %q may not ask", origin)
		}
	}
	return nil
}

// isOurs reports whether host, with or without a port, cannot be a name of
// elsewhere that was made to point here. HTTP/1.0 may send none; browsers do
// not.
func (h *Handler) isOurs(host string) bool {
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
