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

	upload   atomic.Uint32 // state of the request body
	proceed  chan struct{} // closed when the body may be sent, or never will be; nil if it was not awaited
	once     sync.Once     // for proceed
	declined bool          // with the mu of the connection: the response is an error or a redirect

	informed int  // of the reader: number of 1xx responses
	final    bool // of the reader: the final response has arrived

	// With mu.
	informs  []inform // to be passed on
	canceled bool     // by the context

	watch   reqctx.Registration
	watched atomic.Bool // watch is set and in use
}

var _ reqctx.Watcher = (*clientStream)(nil)

// inform is a 1xx response.
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
	s.init(&c.conn, 0)
	s.body.st = &s.stream
	head, err := c.requestHead(req)
	if ctx := req.Context(); err == nil && reqctx.Ended(ctx) {
		err = context.Cause(ctx)
	}
	hasBody := req.Body != nil && req.Body != http.NoBody
	expects := false
	if hasBody && err == nil {
		s.out = sender{st: &s.stream, body: req.Body, trailer: &req.Trailer, left: head.length, announces: len(req.Trailer) > 0}
		if expects = expectsContinue(req.Header); expects {
			s.proceed = make(chan struct{})
		} else {
			err = s.out.fill(false)
		}
	}
	if err == nil {
		err = c.open(s, &head, hasBody)
	}
	if err != nil {
		s.out.release()
		c.Release()
		if !errors.Is(err, message.ErrNotSent) {
			closeBody(req)
		}
		return nil, err
	}
	if hasBody && (!s.out.eof || s.out.buf != nil) {
		s.upload.Store(uploadRuns)
		go s.send(expects)
	} else {
		closeBody(req)
	}
	return s.await()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

func expectsContinue(h http.Header) bool {
	expect := h["Expect"]
	return len(expect) > 0 && strings.EqualFold(expect[0], "100-continue")
}

// open queues the headers and the part of the body that was read. It returns
// [message.ErrNotSent] only if the body was not read.
func (c *ClientConn) open(s *clientStream, head *requestHead, hasBody bool) error {
	c.mu.Lock()
	defer c.unlock()
	err := c.err
	switch {
	case err == nil && c.leaving:
		err = errDraining
		fallthrough
	case err != nil:
		if s.out.began() {
			return err
		}
		return fmt.Errorf("%w: %w", message.ErrNotSent, err)
	}
	s.id = c.nextID
	c.nextID += 2
	s.sendWindow = c.peerWindow
	c.streams[s.id] = &s.stream
	out, from := c.beginBlock()
	out.b = c.enc.request(out.b, head)
	out.b = c.enc.header(out.b, s.req.Header)
	if head.length > 0 || head.sendsZero {
		out.b = c.enc.field(out.b, nameLength, "", strconv.FormatInt(head.length, 10))
	}
	out.b = c.enc.trailer(out.b, s.out.announced(s.req.Header))
	end := !hasBody || s.out.began() && s.out.empty()
	c.endBlock(&s.stream, from, end)
	if !end && s.out.began() {
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
	if h.scheme == "http" {
		b = append(b, 0x86)
	} else {
		b = append(b, 0x87)
	}
	b = e.field(b, namePath, "", h.path)
	if h.authority != "" {
		b = e.field(b, nameAuthority, "", h.authority)
	}
	return b
}

// send sends the request body on its own goroutine, and closes it.
func (s *clientStream) send(expects bool) {
	if !expects || s.awaitContinue() {
		_ = s.out.run()
	}
	if s.upload.CompareAndSwap(uploadRuns, uploadClosed) {
		_ = s.req.Body.Close()
	}
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

// startBody starts sending a request body that waits for a 100 response.
func (s *clientStream) startBody() {
	if s.proceed != nil {
		s.once.Do(func() { close(s.proceed) })
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
	if s.watched.Swap(false) {
		s.watch.Stop()
	}
}

// await waits for the headers of the final response.
func (s *clientStream) await() (*http.Response, error) {
	ctx := s.req.Context()
	s.watch = reqctx.Watch(ctx, s)
	s.watched.Store(true)
	s.mu.Lock()
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
	return &s.rsp, nil
}
