package h1

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

const finishTimeout = 50 * time.Millisecond // longest wait of finished for the sender

// sender sends a request body that is not completely in memory, on its own goroutine.
type sender struct {
	conn    *ClientConn   // its connection
	req     *http.Request // the request whose body is sent
	trace   message.Trace
	expects message.Expectation // tells whether the body waits for 100 Continue; see Await and Decide
	closed  atomic.Bool         // the body is closed or being closed
	done    chan struct{}       // closed when the sender has ended
	err     error               // result; set before done is closed
}

// startSender starts a goroutine that sends req's body from c.out's buffer. From then on the buffer
// belongs to that goroutine.
func (c *ClientConn) startSender(req *http.Request) {
	s := &sender{conn: c, req: req, trace: c.trace, expects: message.NewExpectation(req.Header), done: make(chan struct{})}
	c.sender = s
	// The goroutine gets a copy of the writer, and c.out no longer refers to the buffer.
	go s.run(c.out)
	c.out.buf, c.out.b = nil, nil
}

// run sends the body on the sender's goroutine and then closes done. out is a copy of the connection's
// writer, because the ClientConn may clear its own earlier.
func (s *sender) run(out writer) {
	defer close(s.done)
	defer out.end()
	defer s.closeBody()
	if s.expects != nil {
		_ = panics.Contain(s.trace.Wait100Continue)
	}
	if !s.expects.Await(s.req.Body) {
		s.err = errors.New("the server has not asked for the request body")
		return
	}
	s.err = panics.Do("request body", func() error {
		_, err := out.copyBody(s.req.Body, true) // waits for the whole body
		return err
	})
	if s.err == nil {
		s.err = out.finish(s.req.Trailer)
		message.Moved(s.req.Body) // the last write may have waited
	}
	_ = panics.Contain(func() { s.trace.WroteRequest(s.err) })
	// If the connection is broken, the response may have arrived before.
	if s.err != nil && !out.broken {
		s.conn.fail(s.err)
	}
}

// finished reports whether the whole request was sent without an error. A response may arrive shortly
// before the sender's last write returns, so finished waits up to finishTimeout for it.
func (c *ClientConn) finished() bool {
	s := c.sender
	if s == nil {
		return true
	}
	select {
	case <-s.done: // usually without a timer
	default:
		select {
		case <-s.done:
		case <-time.After(finishTimeout):
			return false
		}
	}
	c.sender = nil
	return s.err == nil
}

// stopSender ends the sender, if there is one, after the connection was closed. It does not wait for
// its goroutine.
func (c *ClientConn) stopSender() {
	s := c.sender
	if s == nil {
		return
	}
	c.sender = nil
	s.expects.Decide(false) // unless it is decided
	s.closeBody()           // ends a Read in progress
}

// closeBody closes the request body, unless it was called before.
func (s *sender) closeBody() {
	if !s.closed.Swap(true) {
		message.CloseBody(s.req)
	}
}
