package layer

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
	defer func() {
		if !c.returned {
			c.panicked = recover()
		}
		r.landed(c)
	}()
	c.rsp, c.err = r.send(c)
	c.class = r.assess(c, c.rsp, c.err)
	c.returned = true
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
	if err != nil {
		c.err = err
		if c.refused() {
			r.closeBody(c)
			budget.refund(entry)
			r.shown.show()
		}
	}
	return rsp, err
}

// landed is called when the copy has returned, in whatever way. A panic is an
// answer too.
func (r *hedgeRace[Req, Rsp]) landed(c *hedgeLeg[Req, Rsp]) {
	r.count(c)
	r.mu.Lock()
	late := r.over
	c.won = !late && (!c.returned || c.wins())
	c.landed = !late && !c.won
	r.over = late || c.won
	r.mu.Unlock()
	switch {
	case c.won:
		if c.returned {
			r.won.inc() // first: the caller does not wait for this goroutine
		}
		r.first.cancel(errHedgeLost)
	case late:
		switch {
		case c.returned && c.err == nil:
			r.resend.Discard(c.rsp)
		case !c.refused(): // it may have panicked
			r.closeBody(c)
		}
		c.End(nil)
	}
	close(c.done)
}

func (r *hedgeRace[Req, Rsp]) count(c *hedgeLeg[Req, Rsp]) {
	if c.returned && c.refused() {
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
