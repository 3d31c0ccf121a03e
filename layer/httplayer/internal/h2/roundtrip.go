package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// clientStream is all that a response needs. It is not reused, because the
// caller may keep its parts.
type clientStream struct {
	stream
	req  *http.Request
	rsp  http.Response
	body body
	out  sender
	slab [8]string

	upload  atomic.Uint32 // state of the request body
	connect bool          // the method is CONNECT
	proceed chan struct{} // closed when the body may be sent, or never will be; nil if it was not awaited
	once    sync.Once     // for proceed

	informed int  // of the reader: number of 1xx responses
	final    bool // of the reader: the final response has arrived
	complete bool // both directions ended with the headers of the response
	declined bool // with the mu of the connection: it is an error or a redirect

	// With mu.
	informs  []inform // to be passed on
	watch    reqctx.Registration
	watches  bool
	canceled bool // by the context
}

type inform struct {
	status int
	header http.Header
}

// States of a request body.
const (
	uploadNone = iota
	uploadRuns // on a goroutine
	uploadClosed
)

const (
	maxInforms      = 5
	continueTimeout = time.Second
)

// RoundTrip sends a request and returns the headers of its response. It uses a
// reserved slot, which is free when the stream has ended. The stream is reset
// when the context of the request ends before the body of the response was
// closed.
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	s := &clientStream{req: req}
	s.client = s
	s.connect = req.Method == http.MethodConnect
	head, err := c.requestHead(req)
	if ctx := req.Context(); err == nil && reqctx.Ended(ctx) {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Release()
		closeBody(req)
		return nil, err
	}
	if err := c.notSent(); err != nil {
		c.Release()
		return nil, err
	}
	s.init(&c.conn, 0)
	s.body.st = &s.stream
	hasBody := req.Body != nil && req.Body != http.NoBody && !s.connect
	expects := false
	if hasBody {
		s.out = sender{st: &s.stream, body: req.Body, trailer: &req.Trailer, left: head.length, announces: len(req.Trailer) > 0}
		if expect := req.Header["Expect"]; len(expect) > 0 && strings.EqualFold(expect[0], "100-continue") {
			expects = true
			s.proceed = make(chan struct{})
		} else if err := s.out.fill(false); err != nil {
			s.out.buf.release()
			c.Release()
			closeBody(req)
			return nil, err
		}
	}
	if err := c.open(s, head, hasBody); err != nil {
		s.out.buf.release()
		c.Release()
		if s.out.buf != nil || s.out.eof {
			closeBody(req)
		}
		return nil, err
	}
	switch {
	case hasBody && (!s.out.eof || s.out.buf != nil):
		s.upload.Store(uploadRuns)
		go s.send(expects)
	case !s.connect:
		closeBody(req)
	}
	return s.await()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// notSent returns an error if no request can be sent.
func (c *ClientConn) notSent() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notSentLocked()
}

func (c *ClientConn) notSentLocked() error {
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", message.ErrNotSent, c.err)
	case c.leaving:
		return fmt.Errorf("%w: the HTTP/2 connection is draining", message.ErrNotSent)
	}
	return nil
}

// open queues the headers and what was read of the body.
func (c *ClientConn) open(s *clientStream, head requestHead, hasBody bool) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.notSentLocked(); err != nil {
		return err
	}
	if head.protocol != "" && !c.peerConnect {
		return &message.RequestError{Reason: "the server does not support extended CONNECT"}
	}
	s.id = c.nextID
	c.nextID += 2
	s.sendWindow = c.peerWindow
	c.streams[s.id] = &s.stream
	out, from := c.beginBlock()
	out.b = c.enc.request(out.b, &head)
	out.b = c.enc.header(out.b, s.req.Header)
	if head.length > 0 || head.length == 0 && head.sendsZero {
		out.b = c.enc.field(out.b, nameLength, "", strconv.FormatInt(head.length, 10))
	}
	if s.out.announces && len(s.req.Header["Trailer"]) == 0 {
		out.b = c.enc.trailer(out.b, s.req.Trailer)
	}
	end := !hasBody && !s.connect || hasBody && s.out.eof && s.out.buf == nil && !hasTrailers(s.req.Trailer)
	c.endBlock(from, s.id, end)
	switch {
	case end:
		s.endSent()
	case hasBody && (s.out.buf != nil || s.out.eof):
		s.out.queue()
	}
	c.kick()
	return nil
}

// request appends the pseudo-header fields.
func (e *encoder) request(b []byte, h *requestHead) []byte {
	switch h.method {
	case http.MethodGet:
		b = append(b, 0x82)
	case http.MethodPost:
		b = append(b, 0x83)
	default:
		b = e.field(b, nameMethod, "", h.method)
	}
	switch h.scheme {
	case "":
	case "http":
		b = append(b, 0x86)
	default:
		b = append(b, 0x87)
	}
	if h.path != "" {
		b = e.field(b, namePath, "", h.path)
	}
	if h.authority != "" {
		b = e.field(b, nameAuthority, "", h.authority)
	}
	if h.protocol != "" {
		b = e.field(b, nameProtocol, "", h.protocol)
	}
	return b
}

// requestHead returns the pseudo-header fields and the length of a request, or a
// [message.RequestError].
func (c *ClientConn) requestHead(req *http.Request) (requestHead, error) {
	h := requestHead{method: req.Method, authority: req.Host}
	if h.method == "" {
		h.method = http.MethodGet
	}
	h.seen = seenMethod | seenAuthority
	if req.URL == nil {
		return h, &message.RequestError{Reason: "no URL"}
	}
	if h.authority == "" {
		h.authority = req.URL.Host
	}
	if protocol := req.Header[":protocol"]; len(protocol) > 0 {
		h.protocol = protocol[0]
		h.seen |= seenProtocol
	}
	if h.method != http.MethodConnect || h.protocol != "" {
		h.seen |= seenPath | seenScheme
		h.path = requestPath(req)
		switch {
		case req.URL.Scheme == "http" || req.URL.Scheme == "https":
			h.scheme = req.URL.Scheme
		case c.cfg.Secure:
			h.scheme = "https"
		default:
			h.scheme = "http"
		}
	}
	reason := h.check()
	if reason == "" {
		reason = validHeader(req.Header)
	}
	if reason == "" {
		reason = h.setLength(req)
	}
	if reason != "" {
		return h, &message.RequestError{Reason: reason}
	}
	return h, nil
}

// requestPath returns the :path of a request.
func requestPath(req *http.Request) string {
	u := req.URL
	if u.Path == "*" && req.Method == http.MethodOptions {
		return "*"
	}
	// The URL of a request that was not edited has the target as it was received.
	if raw := req.RequestURI; strings.HasPrefix(raw, "/") && u.RawPath == "" && u.Opaque == "" {
		path, query, asks := strings.Cut(raw, "?")
		if path == u.Path && query == u.RawQuery && asks == (u.RawQuery != "" || u.ForceQuery) &&
			message.All(path, message.PathByte) {
			return raw
		}
	}
	path := u.EscapedPath()
	if u.Opaque != "" {
		path = u.RequestURI()
		if i := strings.IndexByte(strings.TrimPrefix(path, "//"), '/'); strings.HasPrefix(path, "//") && i >= 0 {
			path = path[i+2:]
		}
		return path
	}
	if path == "" {
		path = "/"
	}
	if u.RawQuery != "" || u.ForceQuery {
		path += "?" + u.RawQuery
	}
	return path
}

// setLength determines the content-length. It returns why it is invalid, or "".
func (h *requestHead) setLength(req *http.Request) string {
	h.length = req.ContentLength
	switch {
	case h.method == http.MethodConnect:
		h.length = -1
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

// send sends the request body on its own goroutine, and closes it.
func (s *clientStream) send(expects bool) {
	if expects && !s.awaitContinue() {
		s.closeUpload()
		return
	}
	_ = s.out.run()
	s.closeUpload()
}

// awaitContinue waits for a 100 response. It reports whether the body is sent.
func (s *clientStream) awaitContinue() bool {
	timer := time.NewTimer(continueTimeout)
	defer timer.Stop()
	select {
	case <-s.proceed:
	case <-timer.C:
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return !s.declined && s.failure() == nil
}

// closeUpload closes the request body, if it is not closed.
func (s *clientStream) closeUpload() {
	if s.upload.CompareAndSwap(uploadRuns, uploadClosed) {
		_ = s.req.Body.Close()
	}
}

// cutRequestBody closes a request body that is being sent, because the stream
// has ended. It does not wait, because Close of any body may.
func (s *clientStream) cutRequestBody() {
	if s.upload.CompareAndSwap(uploadRuns, uploadClosed) {
		go s.req.Body.Close()
	}
	s.startBody()
}

// ContextDone is part of [reqctx.Watcher]: the context of the request ended.
func (s *clientStream) ContextDone(cause error) {
	code := message.CodeCancel
	if canceled, ok := errors.AsType[*message.CanceledError](cause); ok && canceled.Code != message.CodeNo {
		code = canceled.Code
	}
	s.mu.Lock()
	s.canceled = true
	s.mu.Unlock()
	s.reset(code, cause)
}

// unwatch ends the registration with the context of the request.
func (s *clientStream) unwatch() {
	s.mu.Lock()
	watch, watches := s.watch, s.watches
	s.watch, s.watches = reqctx.Registration{}, false
	s.mu.Unlock()
	if watches {
		watch.Stop()
	}
}

// startBody lets a request body that waits for a 100 response be sent.
func (s *clientStream) startBody() {
	if s.proceed != nil {
		s.once.Do(func() { close(s.proceed) })
	}
}

// await waits for the headers of the final response.
func (s *clientStream) await() (*http.Response, error) {
	ctx := s.req.Context()
	watch := reqctx.Watch(ctx, s)
	s.mu.Lock()
	s.watch, s.watches = watch, true
	for {
		for len(s.informs) > 0 {
			next := s.informs[0]
			s.informs = s.informs[1:]
			s.mu.Unlock()
			if err := message.Inform(ctx, next.status, next.header); err != nil {
				s.reset(message.CodeCancel, err)
			}
			s.mu.Lock()
		}
		if s.ready || s.receiveErr != nil {
			break
		}
		s.readable.Wait()
	}
	err := s.receiveErr
	if s.ready && !s.canceled {
		err = nil
	}
	s.mu.Unlock()
	if err != nil {
		s.unwatch()
		s.discard()
		return nil, err
	}
	s.rsp.Request = s.req
	if s.complete {
		s.unwatch()
	}
	return &s.rsp, nil
}
