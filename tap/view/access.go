package view

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gotower/gotower/internal/authority"
)

// Loopback is the default for Config.Authorize. It returns an error unless the client is on this
// machine, and also if the request contains a header field that proxies add: Forwarded, Via,
// X-Real-Ip, or X-Forwarded-For, -Host or -Proto. A proxy on this machine that adds none of them,
// such as nginx by default, is not detected.
func Loopback(r *http.Request) error {
	for _, name := range [...]string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
		if _, ok := r.Header[name]; ok { // an empty value counts
			return errors.New("the request was forwarded by a proxy")
		}
	}
	if r.RemoteAddr == "@" || r.RemoteAddr == "" {
		return nil // a Unix socket; its file mode restricts the clients
	}
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !addr.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("%s is not on this machine", r.RemoteAddr)
	}
	return nil
}

// permit returns an error if r must be rejected. It checks the client, and then the Host header and the
// origin of the page that sent r, because any web page in a browser on this machine can send requests
// to it.
func (h *Handler) permit(r *http.Request) error {
	if err := h.config.Authorize(r); err != nil {
		return err
	}
	if !authority.IsOwn(r.Host, h.config.Hosts) {
		return fmt.Errorf("the host %q is not allowed; use localhost or an address", r.Host)
	}
	// A page of another origin must not send requests, because it could keep streams open. But it may
	// contain a link to this page: the browser then sends a navigation, which is allowed below.
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return nil
	case "": // browsers send the field only to https and loopback
		origin := r.Header.Get("Origin")
		if _, host, _ := strings.Cut(origin, "://"); origin == "" || strings.EqualFold(host, r.Host) {
			return nil
		}
	}
	if r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return errors.New("requests of pages of another origin are not allowed")
}

// setSecurityHeaders sets headers that make a browser run only the scripts and style of
// this page. They also prevent other pages from embedding it.
func setSecurityHeaders(header http.Header) {
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "+
		"require-trusted-types-for 'script'; trusted-types 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
}
