package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// clientStream is the state of one request and its response, in one allocation. It is not reused,
// because RoundTrip's caller may keep parts of it.
type clientStream struct {
	stream
	req  *http.Request
	rsp  http.Response
	out  sender
	slab [8]string

	sending atomic.Bool // a goroutine sends the request body, which was not closed
	expects message.Expectation
	headEnd int64 // position of the end of the request headers in the output of the connection
	trace   message.Trace

	started  bool // the hook for the first byte of the response was called
	informed int  // size of the 1xx responses; used by the reader only

	informs []inform            // 1xx responses that RoundTrip has to forward; guarded by stream.mu
	watch   reqctx.Registration // calls ContextDone when the request context ends
}

var _ reqctx.Watcher = (*clientStream)(nil)

// inform is a received 1xx response, which is passed on before the final response.
type inform struct {
	status int
	header http.Header
}

const maxInforms = 1 << 20 // size of the 1xx responses to one request, in bytes

// Call sends a request and returns its response when the headers have arrived. It uses ctx instead of
// the context of req, so that the caller needs no copy of req. It uses a slot that Reserve took, which
// is freed when the stream ends. If ctx ends before the response body is closed or read to its end, the
// stream is reset.
func (c *ClientConn) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	s := &clientStream{req: req, trace: message.TraceOf(ctx)}
	s.client = s
	s.init(&c.conn, 0)
	head, err := c.requestHead(req)
	if err == nil && reqctx.Ended(ctx) {
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
	// The slot that Reserve took was not used.
	if err != nil {
		c.Release()
		if !errors.Is(err, message.ErrNotSent) { // an outer layer may send the request on another connection
			message.CloseBody(req)
		}
		return nil, err
	}
	s.sending.Store(hasBody)
	s.trace.WroteHeaders()
	switch {
	case !hasBody:
		s.trace.WroteRequest(nil)
		message.CloseBody(req)
	// If the whole body is available, this goroutine sends it. Otherwise another one does, because the
	// response may arrive before the request body has ended.
	case s.expects != nil || !s.send(false):
		go s.send(true) // send waits here
	}
	return s.await(ctx)
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
	// From here on the stream counts in c.streams instead of in c.pending.
	c.streams[s.id] = &s.stream
	c.pending--
	out, start := c.beginBlock()
	out.B = c.enc.request(out.B, head)
	out.B = c.enc.header(out.B, s.req.Header)
	if head.length >= 0 {
		out.B = c.enc.field(out.B, nameLength, "", strconv.FormatInt(head.length, 10))
	}
	if s.out.names != "" {
		out.B = c.enc.field(out.B, nameTrailer, "", s.out.names)
	}
	c.endBlock(&s.stream, start, !hasBody)
	// If Write fails before this position, the server cannot have processed the request: see lossError.
	s.headEnd = c.taken + int64(len(c.out.B))
	// Otherwise the headers wait for the first part of the body, to be sent in the same Write.
	if !hasBody || s.expects != nil {
		c.kick()
	}
	return nil
}

// request appends the pseudo-header fields of a request. Common methods and schemes are single bytes,
// as indexes in the static table.
func (e *encoder) request(b []byte, h *requestHead) []byte {
	// A byte above 0x80 is the index of a whole field in the static table: 2 is GET, 3 POST, 6 http and 7 https.
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
		if s.expects != nil {
			_ = panics.Contain(s.trace.Wait100Continue)
		}
		// Await returns false if a response has made the body needless, so that nothing is sent.
		done = !s.expects.Await(s.req.Body)
	} else {
		err = s.out.fill(false) // without waiting
	}
	if err == nil && !done {
		done, err = s.out.run(wait)
	}
	switch {
	case err != nil && s.c.client.Err() != nil: // the reader ends the stream
	case err != nil:
		s.reset(message.ResetCode(err), err)
	case !done:
		return false
	}
	// Either this goroutine closes the body or abortRequestBody does, but not both.
	s.out.release()
	_ = panics.Contain(func() { s.trace.WroteRequest(err) })
	if s.sending.Swap(false) {
		_ = s.req.Body.Close()
	}
	return true
}

// abortRequestBody stops sending the request body, because the stream has ended. If the body is
// still being sent, abortRequestBody closes it on a new goroutine, because Close may block.
func (s *clientStream) abortRequestBody() {
	if s.sending.Swap(false) {
		go s.req.Body.Close()
	}
	s.expects.Decide(false) // unless it is decided
}

// ContextDone implements [reqctx.Watcher]. It resets the stream when the request context ends.
func (s *clientStream) ContextDone(cause error) {
	code := message.CodeCancel
	if canceled, ok := errors.AsType[*message.CanceledError](cause); ok && canceled.Code != message.CodeNo {
		code = canceled.Code
	}
	s.reset(code, cause)
}

// await waits until the final response's headers have arrived, and returns the response. Meanwhile it
// forwards 1xx responses. It returns an error if the stream fails before, for example by a reset, the
// end of ctx or a failed connection, or if forwarding fails. Then nobody reads the body any more.
func (s *clientStream) await(ctx context.Context) (*http.Response, error) {
	s.watch = reqctx.Watch(ctx, s)
	s.mu.Lock()
	for {
		for len(s.informs) > 0 {
			next := s.informs[0]
			s.informs = s.informs[1:]
			// Unlocked, because hooks and Inform are functions of the user.
			s.mu.Unlock()
			s.begin()
			if next.status == http.StatusContinue {
				s.trace.Got100Continue()
			}
			if err := message.Inform(ctx, next.status, next.header); err != nil {
				s.reset(message.CodeCancel, err)
				s.watch.Stop()
				s.discard()
				return nil, err
			}
			s.mu.Lock()
		}
		if s.ready || s.receiveErr != nil {
			break
		}
		s.readable.Wait()
	}
	ready := s.ready
	err := s.receiveErr
	s.mu.Unlock()
	if !ready {
		s.watch.Stop()
		s.discard()
		return nil, err
	}
	s.begin()
	s.rsp.Request = s.req
	return &s.rsp, nil
}

// begin calls the hook GotFirstResponseByte of httptrace, at the first response of any kind.
func (s *clientStream) begin() {
	if !s.trace.IsZero() && !s.started {
		s.started = true
		s.trace.GotFirstResponseByte()
	}
}
