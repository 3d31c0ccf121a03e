package h2

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

func quoted(s string) string { return strconv.Quote(s) }

// requestHead has the pseudo-header fields of a request and the length of its body.
type requestHead struct {
	method, path, scheme, authority, protocol string
	length                                    int64 // content-length that a client sends; -1 for none
}

// pseudo records the pseudo-header field f. It returns false if f is unknown, empty or repeated.
func (h *requestHead) pseudo(f *field) bool {
	var to *string
	switch f.name {
	case nameMethod:
		to = &h.method
	case namePath:
		to = &h.path
	case nameScheme:
		to = &h.scheme
	case nameAuthority:
		to = &h.authority
	case nameProtocol:
		to = &h.protocol
	}
	if to == nil || *to != "" || f.value == "" {
		return false
	}
	*to = f.value
	return true
}

// check returns "" if the pseudo-header fields are valid, and otherwise the reason why they
// are not.
func (h *requestHead) check() string {
	connect := h.method == http.MethodConnect
	switch {
	case !message.ValidName(h.method):
		return "invalid :method"
	case !message.ValidHost(h.authority):
		return "invalid :authority"
	case connect && h.protocol == "":
		if h.authority == "" || h.path != "" || h.scheme != "" {
			return "CONNECT without :authority, or with :path or :scheme"
		}
		return ""
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

// request builds the request of s from the fields of its header block. If the fields are
// malformed, it returns the reason, and otherwise "".
func (c *ServerConn) request(s *serverStream, fields []field, end bool) string {
	var h requestHead
	i := 0
	for ; i < len(fields) && fields[i].name.kind == pseudoName; i++ {
		if !h.pseudo(&fields[i]) {
			return "unknown, empty or repeated pseudo-header field"
		}
	}
	if reason := h.check(); reason != "" {
		return reason
	}
	if h.protocol != "" && c.cfg.Exchange == nil { // not announced, see NewServerConn
		return "extended CONNECT is not supported"
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
			if host != "" || !message.ValidHost(f.value) || f.value == "" ||
				h.authority != "" && f.value != h.authority {
				return "invalid host, or another one than :authority"
			}
			host = f.value
		}
	}
	if end && length > 0 {
		return "body and content-length differ"
	}
	s.left = length
	r := &s.req
	*r = *new(http.Request).WithContext(s)
	if r.URL = &s.url; !h.parseURL(r.URL) {
		return "invalid :path"
	}
	r.Method, r.RequestURI, r.Host, r.RemoteAddr = h.method, h.path, h.authority, c.remote
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	r.ContentLength = length
	r.Header = makeHeader(fields, s.slab[:])
	c.finishRequest(s, &h, host, end)
	return ""
}

// finishRequest completes the request after its header fields were stored. It uses the argument
// host as the Host if :authority is missing, joins the Cookie fields to one, converts a WebSocket to an
// upgrade, and sets the body. If end is true, the request has no body.
func (c *ServerConn) finishRequest(s *serverStream, h *requestHead, host string, end bool) {
	r := &s.req
	if host != "" && h.authority == "" {
		r.Host = host
		delete(r.Header, "Host")
	}
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
	r.Body = &s.stream
	r.Trailer = message.Announced(r.Header["Trailer"])
	delete(r.Header, "Trailer")
	grpc := message.IsRPC(r.Header)
	if r.Trailer == nil && !grpc && r.Method != http.MethodConnect {
		r.Trailer = make(http.Header) // copies of the request share it
	}
	if r.ContentLength > 0 && !grpc && (c.cfg.BodyIdle > 0 || c.cfg.MinBodyRate > 0) {
		s.reads = &s.waits
	}
	s.expects.Store(message.ExpectsContinue(r.Header))
}

// parseURL sets u according to :path and :authority. It returns false if :path is invalid.
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

// requestHead returns the pseudo-header fields and the length that a client sends for req.
// It returns a [message.RequestError] if req is invalid.
func (c *ClientConn) requestHead(req *http.Request) (h requestHead, err error) {
	if req.URL == nil {
		return h, &message.RequestError{Reason: "no URL"}
	}
	h = requestHead{method: req.Method, authority: req.Host, scheme: req.URL.Scheme, path: req.URL.RequestURI()}
	if h.method == "" {
		h.method = http.MethodGet
	}
	if h.authority == "" {
		h.authority = req.URL.Host
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
	if h.method == http.MethodConnect {
		reason = "CONNECT is sent by HTTP/1.1 only"
	}
	if reason != "" {
		return h, &message.RequestError{Reason: reason}
	}
	return h, nil
}

// setLength sets h.length for the body of req. If the ContentLength of req is invalid, it returns the
// reason, and otherwise "".
func (h *requestHead) setLength(req *http.Request) string {
	h.length = req.ContentLength
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		if h.length > 0 {
			return "ContentLength without a Body"
		}
		h.length = 0
		if h.method != http.MethodPost && h.method != http.MethodPut && h.method != http.MethodPatch &&
			len(req.Header["Content-Length"]) == 0 {
			h.length = -1
		}
	case h.length <= 0:
		h.length = -1
	}
	return ""
}
