package h1

import (
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

const (
	continueTimeout = time.Second           // then a body is sent without 100 Continue
	finishTimeout   = 50 * time.Millisecond // see finished
)

// sender sends a request body that is not in memory, on a goroutine of its own.
type sender struct {
	conn    *ClientConn
	req     *http.Request
	proceed chan bool     // receives whether the server wants the body; nil without Expect
	done    chan struct{} // closed when the sender has ended
	err     error         // result; set before done is closed
}

// startSender starts a sender for the body of req. The goroutine of the sender owns the
// buffer of c.out until it ends.
func (c *ClientConn) startSender(req *http.Request) {
	s := &sender{conn: c, req: req, done: make(chan struct{})}
	if message.ExpectsContinue(req.Header) {
		s.proceed = make(chan bool, 1)
	}
	c.sender = s
	go s.run(c.out)
	c.out.buf, c.out.b = nil, nil
}

// run sends the body and then closes done. It uses its own copy of the writer, because the
// ClientConn may clear c.out earlier.
func (s *sender) run(out writer) {
	defer close(s.done)
	defer out.end()
	defer message.CloseBody(s.req)
	if s.err = s.await(); s.err != nil {
		return
	}
	s.err = panics.Do("request body", func() error { return out.copyBody(s.req.Body) })
	if s.err == nil {
		s.err = out.finish(s.req.Trailer)
	}
	// If the connection is broken, the response may have arrived before.
	if s.err != nil && !out.broken {
		s.conn.fail(s.err)
	}
}

// await waits for 100 Continue if the request expects it. It returns nil after 100 Continue
// or continueTimeout, and errNotAsked if a final response arrived first.
func (s *sender) await() error {
	if s.proceed == nil {
		return nil
	}
	timeout := time.NewTimer(continueTimeout)
	defer timeout.Stop()
	select {
	case asked := <-s.proceed:
		if !asked {
			return errNotAsked
		}
	case <-timeout.C:
	}
	return nil
}

// decide notifies the sender whether the server wants the body. Only the first call has an
// effect.
func (s *sender) decide(asked bool) {
	select {
	case s.proceed <- asked:
	default: // also if the request has no Expect
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
	case <-s.done:
	default:
		timeout := time.NewTimer(finishTimeout)
		defer timeout.Stop()
		select {
		case <-s.done:
		case <-timeout.C:
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
	s.decide(false)
	select {
	case <-s.done:
	default:
		message.CloseBody(s.req) // ends a Read in progress
	}
}
