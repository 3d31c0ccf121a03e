package layer

import (
	"errors"
	"sync"
	"time"
)

// hedgeRace is one request and, once it has taken too long, its copy.
type hedgeRace[Req, Rsp any] struct {
	*hedge[Req, Rsp]
	ctx    triesContext
	req    Req
	replay Replay[Req] // nil where req can be sent as it is
	start  time.Duration
	timer  *time.Timer
	first  hedgeLeg[Req, Rsp] // runs in the caller's goroutine

	mu     sync.Mutex
	second *hedgeLeg[Req, Rsp] // the copy; nil until it is sent
	over   bool                // it is decided whose answer counts
}

// hedgeLeg is one of the two.
type hedgeLeg[Req, Rsp any] struct {
	expiry // its context
	req    Req
	rsp    Rsp
	err    error
	class  Class
	open   bool // rsp is not handed on, nor given up

	// Of the copy alone.
	done   chan struct{} // closed when it has returned
	landed bool          // it returned before it was decided; written with mu
	won    bool          // and decided it
}

// errHedgeLost is why the context of the slower one ends.
var errHedgeLost = errors.New("another copy of the request was answered first")

// errHedgeSkipped stands for a copy that was not sent. It is never returned.
var errHedgeSkipped error = &kind{"not hedged", ErrNotReady}

// run sends the first.
func (r *hedgeRace[Req, Rsp]) run(delay time.Duration) (Rsp, error) {
	f := &r.first
	f.init(&r.ctx, 0, nil, byHand)
	f.req = r.req
	if replay := r.resend.Replay(r.req, r.policy.MaxBodyBytes); replay != nil {
		first, ok := replay.Next()
		if !ok {
			return r.alone(r.ctx.Context, r.req, r.start)
		}
		r.replay, f.req = replay, first
	}
	r.timer = time.AfterFunc(delay, r.hurry)
	returned := false
	defer func() {
		if !returned {
			r.abandon()
		}
	}()
	f.rsp, f.err = r.Service.Call(f, f.req)
	f.open = f.err == nil
	f.class = r.assess(f, f.rsp, f.err)
	rsp, err := r.settle()
	returned = true
	return rsp, err
}

// settle is called when the first has returned, and finds the answer.
func (r *hedgeRace[Req, Rsp]) settle() (Rsp, error) {
	r.timer.Stop()
	f := &r.first
	r.mu.Lock()
	c, lost := r.second, r.over
	decided := c == nil || f.wins()
	r.over = lost || decided
	landed := c.hasLanded()
	r.mu.Unlock()
	r.account(r.ctx.Context, r.start, f.class == Success || lost, f.err)
	switch {
	case lost:
		return r.pick(c, f)
	case decided && landed:
		return r.pick(f, c)
	case decided:
		if c != nil {
			c.cancel(errHedgeLost)
		}
		return r.answer(f)
	}
	<-c.done
	if c.won || c.rank() > f.rank() {
		return r.pick(c, f)
	}
	return r.pick(f, c)
}

// pick returns the answer of one, and gives the other up.
func (r *hedgeRace[Req, Rsp]) pick(good, bad *hedgeLeg[Req, Rsp]) (Rsp, error) {
	r.giveUp(bad)
	return r.answer(good)
}

// giveUp lets go of one that is over and is not the answer.
func (r *hedgeRace[Req, Rsp]) giveUp(l *hedgeLeg[Req, Rsp]) {
	defer l.End(nil)
	if l.err != nil && (l == &r.first || !l.refused()) {
		// The request was sent after all, or failed on its way there, so nobody
		// else will close its body. A copy that was refused has none any more.
		defer r.closeBody(l)
	}
	if l.open {
		l.open = false
		l.cancel(errHedgeLost)
		r.resend.Drain(l.rsp)
	}
}

// answer hands out what one of the two returned.
func (r *hedgeRace[Req, Rsp]) answer(l *hedgeLeg[Req, Rsp]) (Rsp, error) {
	r.end()
	if l.err != nil {
		l.End(nil)
		return l.rsp, l.err
	}
	rsp := r.complete(l, l.rsp, l)
	l.open = false
	return rsp, nil
}

// end says that the request is not sent again.
func (r *hedgeRace[Req, Rsp]) end() {
	if r.replay != nil {
		r.replay.End()
	}
}

// abandon is called after a panic on the caller's goroutine, or Goexit.
func (r *hedgeRace[Req, Rsp]) abandon() {
	r.timer.Stop()
	r.mu.Lock()
	c := r.second
	r.over = true
	landed := c.hasLanded() // if not, the copy sees to itself when it returns
	r.mu.Unlock()
	defer r.giveUp(&r.first)
	if landed {
		defer r.giveUp(c)
	} else if c != nil {
		c.cancel(errHedgeLost)
	}
	r.end()
}

// closeBody closes the request body of one that failed, or was refused.
func (r *hedgeRace[Req, Rsp]) closeBody(l *hedgeLeg[Req, Rsp]) {
	if r.replay != nil {
		r.requests.closeBody(l.req)
	}
}

func (l *hedgeLeg[Req, Rsp]) refused() bool { return l.err != nil && errors.Is(l.err, ErrNotReady) }

// hasLanded reports whether a copy, if there is one, came before it was decided.
// It is called with mu.
func (l *hedgeLeg[Req, Rsp]) hasLanded() bool { return l != nil && l.landed }

// wins reports whether the answer is good enough not to wait for another.
func (l *hedgeLeg[Req, Rsp]) wins() bool {
	return l.class == Success || l.err == nil && !l.class.IsFailure()
}

// rank orders answers that do not win.
func (l *hedgeLeg[Req, Rsp]) rank() int {
	switch {
	case l.err == nil:
		return 2
	case !l.refused():
		return 1
	}
	return 0
}
