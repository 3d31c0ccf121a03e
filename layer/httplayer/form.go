package httplayer

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// form is how the target of a request is written in HTTP/1, and what kind of
// connection it takes.
type form uint8

const (
	originForm   form = iota
	absoluteForm      // "GET http://web/ HTTP/1.1"
	dedicated         // HTTP/1.0, or without a Host: a connection for one request
)

// formOf returns the form that req came in. A request of our own has origin
// form.
func formOf(req *http.Request) form {
	switch {
	case isHTTP10(req), req.RequestURI != "" && (Accessor{}).Authority(req) == "":
		return dedicated
	case cameAbsolute(req):
		return absoluteForm
	}
	return originForm
}

// cameAbsolute reports whether req was received in absolute form.
func cameAbsolute(req *http.Request) bool { return req.ProtoMajor == 1 && cameAsURL(req) }

// cameAsURL reports whether the target of a request that a server received is
// no path.
func cameAsURL(req *http.Request) bool {
	uri := req.RequestURI
	return uri != "" && uri[0] != '/' && uri != "*" && req.Method != http.MethodConnect
}

// absoluteTarget is the target of r in absolute form.
func absoluteTarget(r *http.Request) string {
	var a Accessor
	target := a.Scheme(r) + "://" + a.Authority(r) + a.Path(r)
	if r.URL != nil && (r.URL.RawQuery != "" || r.URL.ForceQuery) {
		target += "?" + r.URL.RawQuery
	}
	return target
}

// inAbsoluteForm is u as net/http sends it with its scheme and authority.
func inAbsoluteForm(u *url.URL) *url.URL {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	absolute := *u
	absolute.Opaque = "//" + u.Host + path
	return &absolute
}

// misdirected returns why a request that a server received cannot be proxied:
// CONNECT that is not HTTP/1.1 with an authority for its target, or has a body,
// which might be the tunnel's; an authority for a target of anything else; and a
// URL for a path of HTTP/2.
// What follows such a request on its connection is not to be taken for another
// one.
func misdirected(r *http.Request) error {
	reason := ""
	switch {
	case twoAuthorities(r):
		reason = "the path of an HTTP/2 request is a URL"
	case r.Method != http.MethodConnect:
		if r.URL.Opaque != "" {
			reason = "the target of the request is no path and no URL"
		}
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		reason = "CONNECT needs HTTP/1.1"
	case !isAuthorityForm(r.RequestURI):
		reason = "the target of CONNECT must be host:port"
	case r.ContentLength != 0:
		reason = "CONNECT has no body"
	}
	if reason == "" {
		return nil
	}
	return &StatusError{Code: http.StatusBadRequest, Reason: reason, Close: r.ProtoMajor == 1}
}

// twoAuthorities reports whether the :path of an HTTP/2 request that a server
// received is a URL, which is malformed (RFC 9113, section 8.3.1). net/http lets
// it pass: its URL says one authority, and Host the other, of :authority. What a
// handler has made of the URL since is its own business.
func twoAuthorities(r *http.Request) bool { return r.ProtoMajor >= 2 && cameAsURL(r) }

// onlyHost drops the field Host, which a server of HTTP/2 leaves beside
// :authority. By HTTP/1.1 there is none, and nobody looks for one.
func onlyHost(r *http.Request) { delete(r.Header, "Host") }

// isAuthorityForm reports whether target is a host and a port.
func isAuthorityForm(target string) bool {
	host, port, err := net.SplitHostPort(target)
	if err != nil || host == "" || strings.ContainsAny(target, "/?#@") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
