package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// cameAsURL reports whether req was received with a target that is neither a path nor "*".
// It returns false for CONNECT.
func cameAsURL(req *http.Request) bool {
	uri := req.RequestURI
	return uri != "" && uri[0] != '/' && uri != "*" && req.Method != http.MethodConnect
}

// absoluteTarget returns the URL of r in absolute form.
func absoluteTarget(r *http.Request) string {
	var a Accessor
	target := a.Scheme(r) + "://" + a.Authority(r) + a.Path(r)
	if r.URL != nil && (r.URL.RawQuery != "" || r.URL.ForceQuery) {
		target += "?" + r.URL.RawQuery
	}
	return target
}

// misdirected returns an error with status 400 for a received request that cannot be proxied:
//
//   - CONNECT over HTTP/1.0 or HTTP/2;
//   - CONNECT with a body, or with a target that is not host:port;
//   - another method with a target such as host:port;
//   - an HTTP/2 request with a URL as its path.
//
// The response to such an HTTP/1 request closes the connection, because the bytes after it must not
// be parsed as another request.
func misdirected(r *http.Request) error {
	reason := ""
	switch {
	case twoAuthorities(r):
		reason = "the path of an HTTP/2 request is a URL"
	case r.Method != http.MethodConnect:
		if r.URL.Opaque != "" {
			reason = "the request target must be a path or a URL"
		}
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		reason = "CONNECT needs HTTP/1.1"
	case !message.ValidAuthority(r.RequestURI):
		reason = "the target of CONNECT must be host:port"
	case r.ContentLength != 0:
		reason = "CONNECT has no body"
	}
	if reason == "" {
		return nil
	}
	return &StatusError{Code: http.StatusBadRequest, Reason: reason, Close: r.ProtoMajor == 1}
}

// twoAuthorities reports whether r is a received HTTP/2 request with a URL as its :path. The
// authority in that URL may differ from the Host of r. Such a request is malformed (RFC
// 9113, section 8.3.1), but net/http accepts it.
func twoAuthorities(r *http.Request) bool { return r.ProtoMajor >= 2 && cameAsURL(r) }
