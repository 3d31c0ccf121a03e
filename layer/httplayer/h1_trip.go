package httplayer

import (
	"errors"
	"net/http"
	"time"
)

// lostPatience is how long net/http may take to report that a connection was
// lost, or to hand out a response that came before.
const lostPatience = 100 * time.Millisecond

var errAwaitedBody = errors.New("the connection was lost while more of the request body was awaited")

// roundTrip is net/http's, except that it does not wait for the body of a
// request when its connection is no more. net/http does: a Read of the body
// that waits for a client who says nothing would keep the caller from the
// error, from a time limit, and from the next try. That Read ends when it will.
func (c *h1Conn) roundTrip(out outgoing) (*http.Response, error) {
	if out.body == nil {
		return c.cc.RoundTrip(out.Request)
	}
	ended, left := make(chan tripped), make(chan struct{})
	go func() {
		rsp, err := c.cc.RoundTrip(out.Request)
		select {
		case ended <- tripped{rsp, err}:
		case <-left:
			if err == nil {
				_ = rsp.Body.Close()
			}
		}
	}()
	t, ok := outcome(ended, c.wire.over, lostPatience)
	if !ok {
		out.admit() // what was written of it may not be counted yet
		close(left)
		return nil, errAwaitedBody
	}
	return t.rsp, t.err
}

// outcome waits for what ends, and for no longer than patience after over.
func outcome(ended <-chan tripped, over <-chan struct{}, patience time.Duration) (t tripped, ok bool) {
	select {
	case t = <-ended:
		return t, true
	case <-over:
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case t = <-ended:
		return t, true
	case <-late.C:
	}
	select { // both may have been there
	case t = <-ended:
		return t, true
	default:
		return t, false
	}
}

// tripped is what became of a RoundTrip.
type tripped struct {
	rsp *http.Response
	err error
}
