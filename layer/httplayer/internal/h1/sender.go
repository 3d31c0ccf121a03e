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

// sender sends a request body that is not completely in memory. It has its own goroutine.
type sender struct {
	conn    *ClientConn
	req     *http.Request
	expects message.Expectation
	closed  atomic.Bool   // the body is closed or being closed
	done    chan struct{} // closed when the sender has ended
	err     error         // result; set before done is closed
}

// startSender starts a sender for the body of req. The goroutine of the sender owns the
// buffer of c.out until the goroutine ends.
func (c *ClientConn) startSender(req *http.Request) {
	s := &sender{conn: c, req: req, expects: message.NewExpectation(req.Header), done: make(chan struct{})}
	c.sender = s
	go s.run(c.out)
	c.out.buf, c.out.b = nil, nil
}

// run sends the body and then closes done. It uses its own copy of the writer, because the
// ClientConn may clear c.out earlier.
func (s *sender) run(out writer) {
	defer close(s.done)
	defer out.end()
	defer s.closeBody()
	if !s.expects.Await() {
		s.err = errors.New("the server has not asked for the request body")
		return
	}
	s.err = panics.Do("request body", func() error {
		_, err := out.copyBody(s.req.Body, true)
		return err
	})
	if s.err == nil {
		s.err = out.finish(s.req.Trailer)
	}
	// If the connection is broken, the response may have arrived before.
	if s.err != nil && !out.broken {
		s.conn.fail(s.err)
	}
}

// finished reports whether the whole request was sent without an error. It waits up to
// finishTimeout for the sender, because a response may arrive shortly before the last write
// returns.
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

// stopSender ends the sender, if there is one, after the connection was closed. It closes
// the request body to end a Read in progress.
func (c *ClientConn) stopSender() {
	s := c.sender
	if s == nil {
		return
	}
	c.sender = nil
	s.expects.Decide(false)
	s.closeBody() // ends a Read in progress
}

// closeBody closes the request body, unless it was called before.
func (s *sender) closeBody() {
	if !s.closed.Swap(true) {
		message.CloseBody(s.req)
	}
}
