package layer

import (
	"context"
)

// Retry sends a request again when it failed and a further try may help:
// when the [Classifier] says so, when a try took too long, when it was
// refused. Failures are sent again if the request is idempotent, within the
// [Budget], and after a pause; refusals whatever the request is, without
// charge, after the same pause: those of an endpoint or a connection that is not
// there. What a limit, a rate limit, a [Shed] or a [Queue] refuses, because there is
// too much to do, is passed at once, here and where it is the cause of what a
// balancer says: another try would add to it.
//
// Admission: none of its own; Ready is forwarded. A request that inner refuses
// is refused in the end, if it was never sent.
//
// Cancellation: a done context ends the pause and all further tries at once.
// A pause that would pass the caller's deadline is not begun: the failure is
// returned. Every try carries the same [Attempts], so that a balancer below goes
// to another endpoint.
//
// Body: that of the request is kept while it is read, see [RetryPolicy]. A
// response that is given up is read to its end where that is near, and closed.
// Once a response was returned there are no more tries; one of which the trailers
// may tell of a failure can be held back for them, see [RetryPolicy.Peek]. The
// context of its try lives until it ended, see [WithCompletion].
//
// Errors: a response that is the last is returned as it is, whatever its class;
// an error in an [Error] that says how many tries there were and why there are
// no more. When a try was sent and a later one refused, that is no refusal, but
// of kind [ErrRetryRejected], or [ErrTimeout] if it was fail-fast. What the refused
// one had taken from the Budget is given back. A try that took too long is of
// kind [ErrAttemptTimeout].
//
// Cost: one allocation, and what is read of a request body is copied. With
// AttemptTimeout, a timer and a context more. While nothing fails, the Budget reads the clock for
// every eighth request.
//
// Retries do not multiply: below a Retry that will send the request again,
// another one does no more than to limit its try by AttemptTimeout. A [Hedge] below should
// share its Budget. What the
// policy says beyond its ranges is held to them; see Validate. A policy of one
// try without AttemptTimeout does nothing.
func Retry[Req, Rsp any](policy RetryPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	policy = policy.orDefault()
	resend := resendOf[Req](o)
	if policy.CanRetry == nil {
		policy.CanRetry = resend.Idempotent
	}
	if policy.RetryIf == nil {
		policy.RetryIf = func(out Outcome[Rsp]) bool { return o.classify(out).IsRetryable() }
	}
	whole := !HasBody[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if policy.MaxAttempts == 1 && policy.AttemptTimeout == 0 {
			return next
		}
		r := &retry[Req, Rsp]{Service: next, options: o, policy: policy, resend: resend, whole: whole}
		if policy.Peek != nil {
			r.peek, _ = resend.(TrailerPeeker[Rsp])
		}
		r.tooLong = &kind{"over the limit of " + policy.AttemptTimeout.String() + " a try", ErrAttemptTimeout}
		r.retries.to = o.to.Retries
		r.retries.to.Add(0)
		r.shown.to, r.shown.budget = o.to.Budget, policy.Budget
		if policy.MaxAttempts == 1 {
			o.to.Budget.Add(0) // there is nothing that it would allow
		} else {
			r.shown.show()
		}
		r.expired = o.to.Timeouts.With("limit", "try")
		for why := range skipNothing {
			r.skipped[why].to = o.to.RetriesSkipped.With("reason", why.String())
		}
		return r
	}
}

type retry[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	policy  RetryPolicy[Req, Rsp]
	resend  Replayer[Req, Rsp]
	peek    TrailerPeeker[Rsp] // nil: a response is judged by its head
	whole   bool               // a response is complete when Call returns it
	tooLong error              // the cause of the contexts of tries that were

	retries tally
	shown   budgetGauge
	skipped [skipNothing]tally
	expired interface{ Add(delta float64) }
}

func (r *retry[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	above := retryAbove(ctx)
	if above.retries() {
		return r.once(ctx, req)
	}
	a := &attempt{budget: r.policy.Budget, again: r.policy.CanRetry(req)}
	a.follow(ctx)
	a.paid = above.paysTo(a.budget)
	if a.again {
		if replay := r.resend.Replay(req, r.policy.MaxBodyBytes); replay != nil {
			return r.replayed(a, req, replay)
		}
	}
	return r.send(a, req, nil)
}

// once sends a request that somebody above will send again.
func (r *retry[Req, Rsp]) once(ctx context.Context, req Req) (Rsp, error) {
	if r.policy.AttemptTimeout == 0 {
		return r.Service.Call(ctx, req)
	}
	a := &attempt{}
	a.follow(ctx)
	return r.timed(a, req)
}

// replayed sends a request with a body.
func (r *retry[Req, Rsp]) replayed(a *attempt, req Req, replay Replay[Req]) (Rsp, error) {
	defer replay.End()
	first, ok := replay.Next()
	if !ok {
		a.again = false
		return r.send(a, req, nil)
	}
	return r.send(a, first, replay)
}

func (r *retry[Req, Rsp]) send(a *attempt, req Req, replay Replay[Req]) (rsp Rsp, err error) {
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			r.drop(rsp, err)
		}
	}()
	rsp, err = r.try(a, req)
	got := r.look(a, replay, 1, rsp, err)
	if err == nil && a.hints.Explanation == nil && !r.policy.RetryIf(got.outcome()) {
		a.pay()
		r.shown.follow()
		rsp = got.ahead
	} else {
		s := &retrying[Req, Rsp]{retry: r, ctx: a, req: req, replay: replay, tries: 1}
		s.run(got, &rsp, &err)
	}
	returned = true
	return rsp, err
}

// try sends the request once.
func (r *retry[Req, Rsp]) try(a *attempt, req Req) (Rsp, error) {
	if r.policy.AttemptTimeout == 0 {
		return r.Service.Call(a, req)
	}
	return r.timed(a, req)
}

// timed is a try with a limit, which is lifted when the head of the response is
// there.
func (r *retry[Req, Rsp]) timed(a *attempt, req Req) (rsp Rsp, err error) {
	e := new(expiry)
	e.init(a, r.policy.AttemptTimeout, r.tooLong, soft)
	handed := false
	defer func() {
		if !handed {
			defer e.End(nil)
			r.drop(rsp, err)
		}
	}()
	rsp, err = r.Service.Call(e, req)
	switch {
	case err == nil && e.lift():
		rsp = r.complete(e, rsp, e)
		handed = true
		return rsp, nil
	case err == nil: // at the last moment, and its context is done
		late := rsp
		rsp = *new(Rsp)
		r.resend.Drain(late)
	case a.Err() != nil || !e.expired():
		return rsp, err
	}
	r.expired.Add(1)
	return rsp, &Error{
		Layer: "retry", Target: r.target, Kind: ErrAttemptTimeout,
		Reason: "limit of " + r.policy.AttemptTimeout.String() + " a try", Err: err,
	}
}

func (r *retry[Req, Rsp]) Next() Service[Req, Rsp] { return r.Service }

func (r *retry[Req, Rsp]) Describe() Node {
	state := State{{"tries", r.policy.MaxAttempts}}
	if r.policy.AttemptTimeout > 0 {
		state = append(state, Attr{"per_try", r.policy.AttemptTimeout})
	}
	skipped := int64(0)
	for i := range r.skipped {
		skipped += r.skipped[i].n.Load()
	}
	return Node{Name: "retry", State: append(state,
		Attr{"budget", r.policy.Budget.Balance()}, Attr{"retries", r.retries.n.Load()}, Attr{"skipped", skipped})}
}
