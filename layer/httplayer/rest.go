package httplayer

import (
	"errors"
	"sync/atomic"
)

// rest is whether an HTTP/1.1 connection is at rest: net/http has dealt with all
// that the peer said, and waits for more. Only then is it fit for the next
// request. net/http calls it free sooner, when the response that was awaited has
// ended, and takes what came behind that for the next response if the next
// request is quick: a body in answer to HEAD, and anything else that nobody asked
// for, would be given to the wrong one.
type rest struct {
	state atomic.Uint32
	came  chan struct{} // of room for one: the answer to restAsked
}

const (
	restReading = 1 << iota // net/http is in Read
	restAsked               // somebody is in settle
	restQuiet               // it came to rest, and the peer was asked nothing since
	restEnded
)

// settle waits until a connection that is free is at rest, which is a matter of
// net/http's reader getting its turn. It reports false if the connection ends
// instead. One may be in settle at a time.
func (r *rest) settle() bool {
	for {
		old := r.state.Load()
		switch {
		case old&restEnded != 0:
			return false
		case old&restReading == 0:
			if r.state.CompareAndSwap(old, old|restAsked) {
				<-r.came
			}
		case r.state.CompareAndSwap(old, old|restQuiet):
			return true
		}
	}
}

// begin is called before net/http waits for the peer.
func (r *rest) begin() { r.answer(restReading) }

// end is called when the connection ends.
func (r *rest) end() { r.answer(restEnded) }

func (r *rest) answer(with uint32) {
	if r.state.Or(with)&restAsked != 0 && r.state.And(^uint32(restAsked))&restAsked != 0 {
		r.came <- struct{}{}
	}
}

// finish is called when the peer said something. It reports whether nobody had
// asked.
func (r *rest) finish() (unasked bool) {
	return r.state.And(^uint32(restReading))&restQuiet != 0
}

// ask is called before something is said to the peer.
func (r *rest) ask() {
	if r.state.Load()&restQuiet != 0 {
		r.state.And(^uint32(restQuiet))
	}
}

var errUnasked = errors.New("the server said something unasked")
