package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// clientStream has the state of one request and its response, in one allocation. It is not
// reused, because the caller of RoundTrip may keep parts of it.
type clientStream struct {
	stream
	req  *http.Request
	rsp  http.Response
	out  sender
	slab [8]string

	sending atomic.Bool // a goroutine sends the request body, which was not closed
	expects message.Expectation

	informed int // number of 1xx responses; used by the reader only

	informs []inform // 1xx responses that RoundTrip has to forward; guarded by stream.mu
	watch   reqctx.Registration
}

var _ reqctx.Watcher = (*clientStream)(nil)

// inform is a received 1xx response.
type inform struct {
	status int
	header http.Header
}

const maxInforms = 5

// RoundTrip sends a request and returns its response when the headers have arrived. It uses
// a slot that Reserve took. The slot is freed when the stream ends. If the context of the
// request ends before the response body is closed or read to its end, the stream is reset.
func (c *ClientConn) RoundTrip(req *http.Request) (*http.Response, error) {
	s := &clientStream{req: req}
	s.client = s
	s.init(&c.conn, 0)
	head, err := c.requestHead(req)
	if ctx := req.Context(); err == nil && reqctx.Ended(ctx) {
		err = context.Cause(ctx)
	}
	hasBody := req.Body != nil && req.Body != http.NoBody
	if hasBody && err == nil {
		s.out = newSender(&s.stream, req.Body, head.length, req.Header, &req.Trailer)
		s.expects = message.NewExpectation(req.Header)
	}
	if err == nil {
		err = c.open(s, &head, hasBody)
	}
	if err != nil {
		c.Release()
		if !errors.Is(err, message.ErrNotSent) {
			message.CloseBody(req)
		}
		return nil, err
	}
	s.sending.Store(hasBody)
	switch {
	case !hasBody:
		message.CloseBody(req)
	case s.expects != nil || !s.send(false):
		go s.send(true)
	}
	return s.await()
}

// open opens the stream and queues the headers. Without a body, or if the body waits for 100 Continue,
// it also starts to send them. If the connection has ended or is draining, open returns an error that
// matches [message.ErrNotSent].
func (c *ClientConn) open(s *clientStream, head *requestHead, hasBody bool) error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", message.ErrNotSent, c.err)
	case c.closing:
		return fmt.Errorf("%w: %w", message.ErrNotSent, errDraining)
	}
	s.id = c.nextID
	c.nextID += 2
	s.sendWindow = c.peerWindow
	c.streams[s.id] = &s.stream
	c.pending--
	out, from := c.beginBlock()
	out.B = c.enc.request(out.B, head)
	out.B = c.enc.header(out.B, s.req.Header)
	if head.length >= 0 {
		out.B = c.enc.field(out.B, nameLength, "", strconv.FormatInt(head.length, 10))
	}
	if s.out.names != "" {
		out.B = c.enc.field(out.B, nameTrailer, "", s.out.names)
	}
	c.endBlock(&s.stream, from, !hasBody)
	if !hasBody || s.expects != nil {
		c.kick()
	}
	return nil
}

// request appends the pseudo-header fields of a request.
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

// send sends the request body and closes it. If wait is false, it sends only what it can send without
// waiting, and returns false if that is not the whole body.
func (s *clientStream) send(wait bool) bool {
	var done bool
	var err error
	if wait {
		done = !s.expects.Await()
	} else {
		err = s.out.fill(false)
	}
	if err == nil && !done {
		done, err = s.out.run(wait)
	}
	switch {
	case err != nil:
		s.reset(message.ResetCode(err), err)
	case !done:
		return false
	}
	s.out.release()
	if s.sending.Swap(false) {
		_ = s.req.Body.Close()
	}
	return true
}

// abortRequestBody ends the sending of the request body, because the stream has ended. If the body
// is still being sent, abortRequestBody closes it on a new goroutine, because Close may block.
func (s *clientStream) abortRequestBody() {
	if s.sending.Swap(false) {
		go s.req.Body.Close()
	}
	s.expects.Decide(false)
}

// ContextDone is part of [reqctx.Watcher]. It resets the stream when the context of the
// request ends.
func (s *clientStream) ContextDone(cause error) {
	code := message.CodeCancel
	if canceled, ok := errors.AsType[*message.CanceledError](cause); ok && canceled.Code != message.CodeNo {
		code = canceled.Code
	}
	s.reset(code, cause)
}

// await waits for the final response and returns it when its headers have arrived.
// Meanwhile it forwards 1xx responses.
func (s *clientStream) await() (*http.Response, error) {
	ctx := s.req.Context()
	s.watch = reqctx.Watch(ctx, s)
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
	ready, err := s.ready, s.receiveErr
	s.mu.Unlock()
	if !ready {
		s.watch.Stop()
		s.discard()
		return nil, err
	}
	s.rsp.Request = s.req
	return &s.rsp, nil
}
