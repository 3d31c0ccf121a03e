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
	seen                                      uint8
	length                                    int64 // value of content-length; -1 if unknown
	sendsZero                                 bool  // a client sends content-length even if length is 0
}

const (
	seenMethod = 1 << iota
	seenPath
	seenScheme
	seenAuthority
	seenProtocol
)

// pseudo records the pseudo-header field f. It returns false if f is unknown or was
// recorded before.
func (h *requestHead) pseudo(f *field) bool {
	var bit uint8
	switch f.name {
	case nameMethod:
		h.method, bit = f.value, seenMethod
	case namePath:
		h.path, bit = f.value, seenPath
	case nameScheme:
		h.scheme, bit = f.value, seenScheme
	case nameAuthority:
		h.authority, bit = f.value, seenAuthority
	case nameProtocol:
		h.protocol, bit = f.value, seenProtocol
	}
	repeated := h.seen&bit != 0
	h.seen |= bit
	return bit != 0 && !repeated
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
	case connect && h.seen&seenProtocol == 0:
		if h.authority == "" || h.seen&(seenPath|seenScheme) != 0 {
			return "CONNECT without :authority, or with :path or :scheme"
		}
		return ""
	case h.seen&seenProtocol != 0 && (!connect || !message.ValidName(h.protocol) || h.authority == ""):
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
			return "unknown or repeated pseudo-header field"
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
	*r = *new(http.Request).WithContext(&s.ctx)
	r.TLS = c.tls
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
	s.body.st = &s.stream
	if end || s.accept != "" {
		r.Body, r.ContentLength = http.NoBody, 0
		return
	}
	r.Body = &s.body
	if r.Trailer = message.Announced(r.Header["Trailer"]); r.Trailer != nil {
		delete(r.Header, "Trailer")
	}
	grpc := message.IsRPC(r.Header)
	if r.Trailer == nil && !grpc && r.Method != http.MethodConnect {
		r.Trailer = make(http.Header) // copies of the request share it
	}
	if r.ContentLength > 0 && !grpc && (c.cfg.BodyIdle > 0 || c.cfg.MinBodyRate > 0) {
		s.reads = &s.waits
	}
	s.expects = message.ExpectsContinue(r.Header)
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
	h = requestHead{method: req.Method, authority: req.Host, scheme: req.URL.Scheme, path: requestPath(req), seen: seenPath}
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

// requestPath returns the :path of a request to send. If the URL was not changed since the
// request was received, this is the received target. Otherwise it is the request URI of the
// URL.
func requestPath(req *http.Request) string {
	u := req.URL
	// The URL of a request that was not edited matches the received target.
	if raw := req.RequestURI; strings.HasPrefix(raw, "/") && u.RawPath == "" && u.Opaque == "" {
		path, query, asks := strings.Cut(raw, "?")
		if path == u.Path && query == u.RawQuery && asks == (u.RawQuery != "" || u.ForceQuery) &&
			message.All(path, message.PathByte) {
			return raw
		}
	}
	return u.RequestURI()
}

// setLength sets the length of the body of req in h, which is -1 if it is unknown. It also sets
// h.sendsZero, which reports whether a content-length of 0 is sent. If the ContentLength of req is
// invalid, setLength returns the reason, and otherwise "".
func (h *requestHead) setLength(req *http.Request) string {
	h.length = req.ContentLength
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		if h.length > 0 {
			return "ContentLength without a Body"
		}
		h.length = 0
		h.sendsZero = h.method == http.MethodPost || h.method == http.MethodPut || h.method == http.MethodPatch ||
			len(req.Header["Content-Length"]) > 0
	case h.length <= 0:
		h.length = -1
	}
	return ""
}
