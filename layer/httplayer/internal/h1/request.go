package h1

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// request is a request being served, and its context.
type request struct {
	reqctx.Context
	conn   *ServerConn
	url    url.URL
	body   body // unused if the request has none
	stream stream
	reads  wait // for the body
	writes wait // for the response
	values [12]string

	hasBody bool
	slow    bool // the limits for slow bodies apply
	old     bool // HTTP/1.0
	head    bool // the method is HEAD
	connect bool
	keep    bool // the connection stays open

	started bool // the response has started; guarded by conn.mu
	expects bool // the client waits for 100 Continue; guarded by conn.mu
}

// Value is part of [context.Context].
func (r *request) Value(key any) any {
	switch key {
	case message.InformerKey:
		return &r.stream
	case http.LocalAddrContextKey:
		return r.conn.conn.LocalAddr()
	}
	return r.Context.Value(key)
}

var chunkedCoding = []string{"chunked"}

// newRequest builds the request of the parsed headers, which are the first n
// unread bytes.
func (c *ServerConn) newRequest(n int) (*request, *http.Request, error) {
	h := &c.head
	text := string(c.unread()[:n])
	c.r += n
	r := &request{conn: c, old: h.minor == 0, keep: h.persists()}
	r.Init(c.base, 0, nil)
	r.stream.request = r

	req := new(http.Request).WithContext(r)
	req.Method = methodOf(h.method.of(text))
	req.RequestURI = h.target.of(text)
	req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/1.1", 1, 1
	if r.old {
		req.Proto, req.ProtoMinor = "HTTP/1.0", 0
	}
	req.Host = h.host.of(text)
	req.RemoteAddr = c.remote
	req.Close = !r.keep
	req.URL = &r.url
	r.head = req.Method == http.MethodHead
	r.connect = req.Method == http.MethodConnect
	if err := r.parseTarget(req); err != nil {
		return nil, nil, err
	}
	if r.connect && (h.chunked || h.length > 0) {
		return nil, nil, errConnectBody
	}
	req.Header = h.header(text, r.values[:0])
	req.Body = http.NoBody
	r.hasBody = h.chunked || h.length > 0
	if r.hasBody {
		r.addBody(req)
	}
	if h.hop {
		r.removeHop(req)
	}
	return r, req, nil
}

func (r *request) addBody(req *http.Request) {
	h := &r.conn.head
	b := &r.body
	b.src, b.owner = &r.conn.source, r.conn
	b.expected = h.expects && !r.old
	r.expects = b.expected
	req.ContentLength, b.left = h.length, h.length
	if h.chunked {
		b.framing, b.left = byChunks, 0
		req.TransferEncoding = chunkedCoding
		b.trailer = make(http.Header)
		req.Trailer = b.trailer
		announce(b.trailer, req.Header["Trailer"])
	}
	if cfg := r.conn.cfg; (cfg.BodyIdle > 0 || cfg.MinBodyRate > 0) && !streams(req.Header) {
		r.slow = true
		b.wait = &r.reads
	}
	req.Body = b
}

// announce adds the names that a Trailer field lists to trailer.
func announce(trailer http.Header, values []string) {
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); message.ValidTrailer(name) {
				trailer[name] = nil
			}
		}
	}
}

// streams reports whether pauses are normal in a body with these headers, such as that of
// gRPC.
func streams(header http.Header) bool {
	for _, value := range header["Content-Type"] {
		if strings.HasPrefix(value, "application/grpc") || strings.HasPrefix(value, "application/connect") {
			return true
		}
	}
	return false
}

// removeHop removes the fields of the connection: all of them for an exchange,
// else only Trailer, as net/http does.
func (r *request) removeHop(req *http.Request) {
	delete(req.Header, "Trailer")
	if r.conn.cfg.Exchange == nil {
		return
	}
	// HTTP/1.0 has no upgrades, and an upgrade to HTTP/2 would bypass this proxy.
	if r.old || message.Listed(req.Header["Upgrade"], "h2c") {
		delete(req.Header, "Upgrade")
	}
	message.RemoveHopByHop(req.Header)
}

// methodOf returns a constant for a common method. Otherwise a metric label would keep the
// memory of all headers.
func methodOf(method string) string {
	switch method {
	case http.MethodGet:
		return http.MethodGet
	case http.MethodPost:
		return http.MethodPost
	case http.MethodHead:
		return http.MethodHead
	case http.MethodPut:
		return http.MethodPut
	}
	return method
}

// parseTarget sets the URL, and the host of an absolute target.
func (r *request) parseTarget(req *http.Request) error {
	target := req.RequestURI
	switch {
	case r.connect:
		if u, err := url.ParseRequestURI("http://" + target); err != nil || u.Host != target || !validAuthority(target) {
			return errTarget
		}
		r.url.Host, req.Host = target, target
		return nil
	case plainTarget(target, &r.url):
		return nil
	case target == "*":
		if req.Method != http.MethodOptions {
			return errTarget
		}
	case target[0] != '/':
		scheme, rest, _ := strings.Cut(target, "://")
		authority := rest
		if end := strings.IndexAny(rest, "/?"); end >= 0 {
			authority = rest[:end]
		}
		if !message.ValidName(scheme) || authority == "" || !message.ValidHost(authority) {
			return errTarget
		}
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return errTarget
	}
	r.url = *u
	if u.Host != "" {
		req.Host = u.Host
	}
	return nil
}

// plainTarget parses a path and a query in which nothing is escaped.
func plainTarget(target string, u *url.URL) bool {
	if target[0] != '/' || len(target) > 1 && target[1] == '/' {
		return false
	}
	for i := range len(target) {
		if message.Class[target[i]]&message.PathByte != 0 {
			continue
		}
		if target[i] != '?' || i+1 == len(target) {
			return false
		}
		u.Path, u.RawQuery = target[:i], target[i+1:]
		return true
	}
	u.Path = target
	return true
}
