package h1

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// request is a request that the server is serving, its context, and the [message.Stream] of its
// response.
type request struct {
	reqctx.Context
	conn     *ServerConn
	reported *message.Reported // nil if requests are not reported
	http     http.Request
	url      url.URL
	body     *body // nil without a body
	values   [7]string

	arrived  order                 // of the header
	answered atomic.Pointer[order] // of the header of the response, if an upstream sent it

	old       bool // the version is HTTP/1.0
	head      bool // the method is HEAD
	connect   bool // the method is CONNECT
	keepAlive bool // the connection stays open after the response

	informing sync.Mutex // guards the fields below; locked while a 1xx response is written
	started   bool       // the response has started, or the connection is hijacked
	expects   bool       // the client waits for 100 Continue
}

// Value returns the local address for http.LocalAddrContextKey, and r for message.InformerKey and
// receivedKey. All other values come from the connection's context.
func (r *request) Value(key any) any {
	switch key {
	case message.InformerKey, receivedKey{}:
		return r
	case http.LocalAddrContextKey:
		return r.conn.conn.LocalAddr()
	}
	return r.Context.Value(key)
}

var chunkedCoding = []string{"chunked"}

// newRequest builds the next request to serve from c.head, the parsed headers, which are the first n
// unread bytes. It returns the engine's state of the request and the request itself, which share one
// allocation, or an error for a malformed request.
func (c *ServerConn) newRequest(n int) (*request, *http.Request, error) {
	h := &c.head
	text := string(c.unread()[:n])
	r, reported := message.NewStream[request](c.cfg)
	r.conn = c
	r.reported = reported
	r.old = h.minor == 0
	r.keepAlive = h.persists()
	// abort cancels each request itself, so the context's parent is one that never ends.
	r.Init(c.base, 0, nil) // no time limit

	req := &r.http
	*req = *new(http.Request).WithContext(r)
	req.Method = methodOf(h.method.text(text))
	req.RequestURI = h.target.text(text)
	req.Proto, req.ProtoMajor, req.ProtoMinor = protos[h.minor], 1, h.minor
	req.Host = h.host.text(text)
	req.RemoteAddr = c.remote
	req.Close = !r.keepAlive
	req.URL = &r.url
	r.head = req.Method == http.MethodHead
	r.connect = req.Method == http.MethodConnect
	if err := r.parseTarget(req); err != nil {
		return nil, nil, err
	}
	if req.Host != c.host { // a substring in a cache would keep the memory of all headers alive
		c.host = strings.Clone(req.Host)
	}
	req.Host = c.host
	if r.url.Host != "" {
		r.url.Host = c.host
	}
	if r.connect && (h.chunked || h.length > 0) {
		return nil, nil, malformed("CONNECT with a body")
	}
	// Everything needed was copied into text, so the buffer can go back to the pool.
	c.r += n
	c.release()
	req.Header, r.arrived = h.header(text, r.values[:0])
	req.Body = http.NoBody
	if h.chunked || h.length > 0 {
		r.addBody(req)
	}
	if h.hop {
		r.removeHop(req)
	}
	return r, req, nil
}

// addBody gives req a body that is read from the connection as the headers specify.
func (r *request) addBody(req *http.Request) {
	h := &r.conn.head
	b := new(body)
	b.init(&r.conn.source, r.conn, h, req.Header)
	if r.expects = h.expects && !r.old; r.expects {
		b.request, b.awaits = r, true
	}
	if h.chunked {
		req.TransferEncoding = chunkedCoding
	}
	// A stream of messages may be slow.
	if cfg := r.conn.cfg; (cfg.BodyIdle > 0 || cfg.MinBodyRate > 0) && !h.chunked && !message.IsRPC(req.Header) {
		b.wait = &b.reads
	}
	r.body, req.Body, req.Trailer, req.ContentLength = b, b, b.trailer, h.length
}

// removeHop deletes the hop-by-hop fields, which are meant for this server only, from req.Header.
func (r *request) removeHop(req *http.Request) {
	delete(req.Header, "Trailer")
	if r.old { // HTTP/1.0 has no upgrades
		delete(req.Header, "Upgrade")
	}
	message.RemoveHopByHop(req.Header)
}

// methodOf returns method as a constant or a copy, because a substring, for example in a metric label,
// would keep the memory of all headers alive.
func methodOf(method string) string {
	for _, common := range [...]string{http.MethodGet, http.MethodPost, http.MethodHead, http.MethodPut, http.MethodDelete} {
		if method == common {
			return common
		}
	}
	return strings.Clone(method)
}

// parseTarget parses the request target in its four forms: host and port for CONNECT, a path, "*" for
// OPTIONS, or an absolute URL. It sets r.url, and req.Host if the target contains an authority, which
// takes precedence over the field Host (RFC 9112, section 3.2.2). It returns an error if the target is
// malformed.
func (r *request) parseTarget(req *http.Request) error {
	target := req.RequestURI
	switch {
	case r.connect:
		if u, err := url.ParseRequestURI("http://" + target); err != nil || u.Host != target || !message.ValidAuthority(target) {
			return errTarget
		}
		r.url.Host, req.Host = target, target
		return nil
	case message.PlainTarget(target, &r.url):
		return nil
	case target == "*":
		if req.Method != http.MethodOptions {
			return errTarget
		}
	case target[0] != '/': // an absolute URL; its authority is checked before net/url unescapes it
		scheme, rest, _ := strings.Cut(target, "://")
		authority := rest
		if end := strings.IndexAny(rest, "/?"); end >= 0 {
			authority = rest[:end]
		}
		escaped := strings.Contains(authority, "%") && authority[0] != '[' // only a zone is unescaped in one way
		if !message.ValidName(scheme) || authority == "" || escaped || !message.ValidHost(authority) {
			return errTarget
		}
	}
	u, err := url.ParseRequestURI(target)
	if err != nil || !message.ValidHost(u.Host) { // u.Host is not escaped
		return errTarget
	}
	r.url = *u
	if u.Host != "" {
		req.Host = u.Host
	}
	return nil
}
