package layer

import (
	"errors"

	"github.com/gotower/gotower/internal/panics"
)

// hurry is the timer of a race: it sends the copy, in the timer's goroutine.
func (r *hedgeRace[Req, Rsp]) hurry() {
	c := &hedgeLeg[Req, Rsp]{done: make(chan struct{})}
	c.init(&r.ctx, 0, nil, byHand)
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.second = c
	r.mu.Unlock()
	defer close(c.done)
	returned := false
	defer func() { _ = panics.Contain(func() { r.landed(c, returned) }) }()
	defer func() { _ = panics.Contain(func() { r.count(c) }) }() // before the caller can return
	c.class, c.err = Failure, panics.ErrExited                   // unless it returns
	defer panics.Recover(&c.err)
	rsp, err := r.send(c)
	c.rsp, c.open = rsp, err == nil
	class := r.assess(c, rsp, err)
	c.class, c.err, returned = class, err, true
}

// send sends the copy, if there is a budget and a request for it.
func (r *hedgeRace[Req, Rsp]) send(c *hedgeLeg[Req, Rsp]) (rsp Rsp, err error) {
	budget := r.policy.Budget
	entry, granted := budget.withdraw()
	r.shown.show()
	if !granted {
		r.explain("no budget")
		return rsp, errHedgeSkipped
	}
	req := r.req
	if r.replay != nil {
		next, ok := r.replay.Next()
		if !ok {
			budget.refund(entry)
			r.shown.show()
			r.explain("the request body cannot be sent again")
			return rsp, errHedgeSkipped
		}
		req = next
	}
	c.req = req // now it has a body to be closed
	r.explain("")
	rsp, err = r.Service.Call(c, c.req)
	if err != nil && errors.Is(err, ErrNotReady) {
		c.err = err
		r.closeBody(c)
		budget.refund(entry)
		r.shown.show()
	}
	return rsp, err
}

// landed is called when the copy is over: it returned, panicked or ended its
// goroutine.
func (r *hedgeRace[Req, Rsp]) landed(c *hedgeLeg[Req, Rsp], returned bool) {
	if !returned {
		defer r.closeBody(c)
		if c.open {
			c.open = false
			defer r.resend.Drain(c.rsp)
		}
	}
	r.mu.Lock()
	late := r.over
	c.landed = !late
	c.won = !late && c.wins()
	r.over = late || c.won
	r.mu.Unlock()
	switch {
	case c.won:
		// The last, because the caller does not wait for this goroutine.
		defer r.first.cancel(errHedgeLost)
		defer r.won.inc()
	case late:
		defer r.giveUp(c)
	}
}

func (r *hedgeRace[Req, Rsp]) count(c *hedgeLeg[Req, Rsp]) {
	if c.refused() {
		r.skipped.inc()
	} else {
		r.sent.inc()
	}
}

// explain tells whoever asked that the copy is sent now, or why it is not.
func (r *hedgeRace[Req, Rsp]) explain(skipped string) {
	to := r.ctx.hints.Explanation
	if to == nil {
		return
	}
	n := Node{Name: "hedge"}
	if r.target != "" {
		n.State = append(n.State, Attr{"target", r.target})
	}
	n.State = append(n.State, Attr{"after", r.now() - r.start})
	if skipped != "" {
		n.State = append(n.State, Attr{"skipped", skipped})
	}
	n.State = append(n.State, Attr{"budget", r.policy.Budget.Balance()})
	to.Add(n)
}
