package httplayer

import (
	"errors"
	"sync/atomic"
)

// rest tells whether an HTTP/1.1 connection is at rest: net/http has processed
// all received bytes and waits in Read. Only then the next request may use it.
// net/http reports it as free earlier, and would take further bytes, such as a
// body in a response to HEAD, for the next response.
type rest struct {
	state atomic.Uint32
	came  chan struct{} // of size one; the answer to restAsked
}

const (
	restReading = 1 << iota // net/http is in Read
	restAsked               // settle is waiting
	restQuiet               // at rest, and no request was sent since
	restEnded
)

// settle waits until a free connection is at rest. It returns false if the
// connection ends. It must not be called concurrently.
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

// begin is called before a Read of net/http.
func (r *rest) begin() { r.answer(restReading) }

// end is called when the connection ends.
func (r *rest) end() { r.answer(restEnded) }

func (r *rest) answer(with uint32) {
	if r.state.Or(with)&restAsked != 0 && r.state.And(^uint32(restAsked))&restAsked != 0 {
		r.came <- struct{}{}
	}
}

// finish is called after received bytes. It reports whether they came without a
// request.
func (r *rest) finish() (unasked bool) {
	return r.state.And(^uint32(restReading))&restQuiet != 0
}

// ask is called before a Write.
func (r *rest) ask() {
	if r.state.Load()&restQuiet != 0 {
		r.state.And(^uint32(restQuiet))
	}
}

var errUnasked = errors.New("the server said something unasked")
