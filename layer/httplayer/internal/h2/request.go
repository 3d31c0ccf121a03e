package h2

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

func quoted(s string) string { return strconv.Quote(s) }

// requestHead holds the pseudo-header fields of a request and its body length.
type requestHead struct {
	method, path, scheme, authority, protocol string
	length                                    int64 // content-length that a client sends; -1 for none
}

// pseudo records the pseudo-header field f. It returns false if f is unknown, empty or repeated.
func (h *requestHead) pseudo(f *field) bool {
	var dst *string
	switch f.name {
	case nameMethod:
		dst = &h.method
	case namePath:
		dst = &h.path
	case nameScheme:
		dst = &h.scheme
	case nameAuthority:
		dst = &h.authority
	case nameProtocol:
		dst = &h.protocol
	}
	if dst == nil || *dst != "" || f.value == "" {
		return false
	}
	*dst = f.value
	return true
}

// badAuthority is the reason for which a request with an invalid :authority or host is answered with 400,
// as in HTTP/1.1.
const badAuthority = "invalid :authority"

var errBadAuthority = errors.New(badAuthority)

// check returns "" if the pseudo-header fields are valid, and otherwise the reason why they
// are not.
func (h *requestHead) check() string {
	connect := h.method == http.MethodConnect
	switch {
	case !message.ValidName(h.method):
		return "invalid :method"
	case !message.ValidHost(h.authority):
		return badAuthority
	case connect && h.protocol == "":
		if h.authority == "" || h.path != "" || h.scheme != "" {
			return "CONNECT without :authority, or with :path or :scheme"
		}
		return ""
	// With :protocol, CONNECT has a :path and a :scheme like any other request (RFC 8441).
	case h.protocol != "" && (!connect || !message.ValidName(h.protocol) || h.authority == ""):
		return "invalid :protocol"
	case h.scheme != "http" && h.scheme != "https":
		return "invalid :scheme"
	case h.path == "*" && h.method == http.MethodOptions:
		return ""
	case h.path == "" || h.path[0] != '/' || !message.All(h.path, message.TargetByte):
		return "invalid :path"
	}
	return ""
}

// request builds s.req from the fields of a header block, and stores the pseudo-header fields in h,
// which is filled as far as possible even for a malformed request, so that it can be reported. It
// returns "" on success, and otherwise why the fields are malformed.
func (c *ServerConn) request(s *serverStream, h *requestHead, fields []field, end bool) string {
	i := 0 // number of pseudo-header fields, which must come first
	for ; i < len(fields) && fields[i].name.kind == pseudoName; i++ {
		if !h.pseudo(&fields[i]) {
			return "unknown, empty or repeated pseudo-header field"
		}
	}
	if reason := h.check(); reason != "" {
		return reason
	}
	fields = fields[i:]
	length, reason := checkFields(fields)
	if reason != "" {
		return reason
	}
	host := ""
	for i := range fields {
		f := &fields[i]
		switch f.name.kind {
		case teName:
			if f.value != "trailers" {
				return "TE other than trailers"
			}
		case hostName:
			if f.value != "" && !message.ValidHost(f.value) {
				return badAuthority
			}
			if host != "" || f.value == "" || h.authority != "" && f.value != h.authority {
				return "invalid host, or another one than :authority"
			}
			host = f.value
		}
	}
	if end && length > 0 {
		return "body and content-length differ"
	}
	s.remaining = length
	r := &s.req
	*r = *new(http.Request).WithContext(s)
	if r.URL = &s.url; !h.parseURL(r.URL) {
		return "invalid :path"
	}
	r.Method, r.RequestURI, r.Host, r.RemoteAddr = h.method, h.path, h.authority, c.remote
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	r.ContentLength = length
	r.Header = makeHeader(fields, s.slab[:])
	c.finishRequest(s, h, host, end)
	return ""
}

// finishRequest completes the request after its header fields were stored. It uses host as the Host
// if :authority is missing, joins the Cookie fields to one, converts a WebSocket to an upgrade, and
// sets the body. If end is true, the request carries no body.
func (c *ServerConn) finishRequest(s *serverStream, h *requestHead, host string, end bool) {
	r := &s.req
	if host != "" && h.authority == "" {
		r.Host = host
		delete(r.Header, "Host")
	}
	// HTTP/2 clients may split the cookies into several fields, which HTTP/1.1 servers do not expect.
	if cookies := r.Header["Cookie"]; len(cookies) > 1 {
		r.Header["Cookie"] = []string{strings.Join(cookies, "; ")}
	}
	if r.Method == http.MethodConnect && h.protocol == "" {
		r.RequestURI = h.authority
	}
	switch h.protocol {
	case "":
	case "websocket":
		s.upgrade()
	default:
		r.Header[":protocol"] = []string{h.protocol}
	}
	if end || s.accept != "" {
		r.Body, r.ContentLength = http.NoBody, 0
		return
	}
	r.Body = &s.stream // the stream itself is the body: its Read returns the bytes that arrive
	r.Trailer = message.Announced(r.Header["Trailer"])
	delete(r.Header, "Trailer")
	grpc := message.IsRPC(r.Header)
	if r.Trailer == nil && !grpc && r.Method != http.MethodConnect {
		r.Trailer = make(http.Header) // copies of the request share it
	}
	if r.ContentLength > 0 && !grpc && (c.cfg.BodyIdle > 0 || c.cfg.MinBodyRate > 0) {
		s.reads = &s.waits // from here on, the sweeper enforces the time limits of the body
	}
	s.expects.Store(message.ExpectsContinue(r.Header))
}

// parseURL sets u from :path and, for CONNECT, from :authority. It returns false if :path is invalid.
func (h *requestHead) parseURL(u *url.URL) bool {
	if h.method == http.MethodConnect && h.protocol == "" {
		u.Host = h.authority
		return true
	}
	if message.PlainTarget(h.path, u) {
		return true
	}
	parsed, err := url.ParseRequestURI(h.path)
	if err != nil {
		return false
	}
	*u = *parsed
	return true
}

// requestHead returns the pseudo-header fields for req and the content-length to send. Missing values
// get their defaults: GET, and the scheme of the connection. It returns a [message.RequestError] if req
// cannot be sent.
func (c *ClientConn) requestHead(req *http.Request) (h requestHead, err error) {
	if req.URL == nil {
		return h, &message.RequestError{Reason: "no URL"}
	}
	authority, ok := message.Host(req)
	if !ok {
		return h, &message.RequestError{Reason: "invalid host " + strconv.Quote(authority)}
	}
	h = requestHead{method: req.Method, authority: authority, scheme: req.URL.Scheme, path: target(req.URL)}
	if h.method == "" {
		h.method = http.MethodGet
	}
	if h.scheme != "http" && h.scheme != "https" {
		h.scheme = "http"
		if c.cfg.Secure {
			h.scheme = "https"
		}
	}
	reason := h.check()
	if reason == "" {
		reason = validHeader(req.Header)
	}
	if reason == "" {
		reason = h.setLength(req)
	}
	// This reason is more helpful than those above.
	if h.method == http.MethodConnect {
		reason = "CONNECT is sent by HTTP/1.1 only"
	}
	if reason != "" {
		return h, &message.RequestError{Reason: reason}
	}
	return h, nil
}

// target returns the path and the query of u as they are sent. An Opaque in the form "//host/path"
// contains the path.
func target(u *url.URL) string {
	path := message.EscapedPath(u)
	switch {
	case u.Opaque != "":
		return strings.TrimPrefix(u.RequestURI(), u.Scheme+"://"+u.Host)
	case path == "":
		path = "/"
	}
	if u.RawQuery != "" || u.ForceQuery {
		return path + "?" + u.RawQuery
	}
	return path
}

// setLength sets h.length for req's body. If req.ContentLength is invalid, it returns the reason, and
// otherwise "".
func (h *requestHead) setLength(req *http.Request) string {
	h.length = req.ContentLength
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		if h.length > 0 {
			return "ContentLength without a Body"
		}
		h.length = 0
		// These methods usually have a body, so an empty one is declared with content-length: 0.
		if h.method != http.MethodPost && h.method != http.MethodPut && h.method != http.MethodPatch &&
			(req.RequestURI == "" || len(req.Header["Content-Length"]) == 0) {
			h.length = -1
		}
	case h.length <= 0: // the length is unknown, because ContentLength 0 with a body means that, too
		h.length = -1
	}
	return ""
}
