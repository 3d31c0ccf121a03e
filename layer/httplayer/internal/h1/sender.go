package h1

import (
	"net/http"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

const (
	continueTimeout = time.Second           // a request with Expect waits so long for 100 Continue
	finishTimeout   = 50 * time.Millisecond // a complete response waits so long for the last write of its request
)

// sender sends a request body that is not in memory.
type sender struct {
	conn    *ClientConn
	req     *http.Request
	proceed chan bool     // whether the server asks for the body; nil without Expect
	done    chan struct{} // closed at the end
	err     error         // set before done is closed
}

// expects reports whether req has Expect: 100-continue, so that the server decides whether
// the body is sent.
func expects(req *http.Request) bool {
	return message.Listed(req.Header["Expect"], "100-continue")
}

// startSender sends the body on a goroutine, which gets the writer.
func (c *ClientConn) startSender(req *http.Request) {
	s := &sender{conn: c, req: req, done: make(chan struct{})}
	if expects(req) {
		s.proceed = make(chan bool, 1)
	}
	c.sender = s
	go s.run(c.out)
	c.out.buf, c.out.b = nil, nil
}

// run sends the body. out is a copy of the writer, because the ClientConn may be closed
// earlier.
func (s *sender) run(out writer) {
	defer close(s.done)
	defer out.end()
	defer closeBody(s.req)
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

// await waits for 100 Continue, at most continueTimeout. It returns errNotAsked if the
// server has answered instead.
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

// decide reports to the sender whether the server asks for the body. Only the first call
// has an effect.
func (s *sender) decide(asked bool) {
	select {
	case s.proceed <- asked:
	default: // also if the request has no Expect
	}
}

// finished reports whether the whole request was sent. It waits for at most finishTimeout,
// because a response may arrive shortly before the last write has returned.
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

// cut ends the sending of a body after the connection was closed.
func (c *ClientConn) cut() {
	s := c.sender
	if s == nil {
		return
	}
	c.sender = nil
	s.decide(false)
	select {
	case <-s.done:
	default:
		closeBody(s.req) // ends a Read in progress
	}
}
