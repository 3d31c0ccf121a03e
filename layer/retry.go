package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/ctxreason"
)

// Retry sends a request again if it failed and another attempt may succeed. It retries failures of
// class [Retryable] or [Throttled], and attempts that exceed AttemptTimeout. Such a retry needs an
// idempotent request, follows after a pause and withdraws from the [Budget]. A rejected attempt was
// not sent, and is retried without the budget. But rejections by limits, [Shed] and [Queue], and
// those that match [ErrClosed], are returned at once.
//
// Admission: every request is admitted. If all attempts were rejected, so is the request.
//
// Cancellation: the end of the context ends the pause and all attempts, and is the cause of the error.
// All attempts share one [Attempts], so that a balancer below chooses another endpoint.
//
// Body: the request body is stored while it is read, see [RetryPolicy]. If trailers may report
// a failure, Call waits for the first bytes of the response body, see [Replayer].
//
// Errors: the last response is returned, also if it is a failure. An error is wrapped in an
// [Error] with the number of attempts. A rejection after an attempt that was sent has kind
// [ErrRetryRejected], or [ErrTimeout] if it matches [ErrFailFast].
//
// Cost: one allocation and the copy of the body. Of nested Retry layers, only the outermost one
// retries. A [Hedge] below should share the Budget.
func Retry[Req, Rsp any](policy RetryPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(policy)
	policy = policy.filled()
	replayer := replayerOf[Req](o)
	if policy.CanRetry == nil {
		policy.CanRetry = replayer.Idempotent
	}
	if policy.RetryIf == nil {
		policy.RetryIf = func(out Outcome[Rsp]) bool {
			own := out.Err != nil && (errors.Is(out.Err, ErrNotReady) || errors.Is(out.Err, ErrAttemptTimeout))
			return own || o.classify(out).IsRetryable()
		}
	}
	whole := !HasBody[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if policy.MaxAttempts == 1 && policy.AttemptTimeout == 0 {
			return next
		}
		r := &retry[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, policy: policy, replayer: replayer, requests: bodyAccessorOf[Req](), whole: whole,
		}
		r.tooLong = &kind{"over the limit of " + policy.AttemptTimeout.String() + " per attempt", ErrAttemptTimeout}
		r.retries.to = o.to.Retries
		r.retries.to.Add(0)
		r.gauge.to, r.gauge.budget = o.to.Budget, policy.Budget
		if policy.MaxAttempts > 1 {
			r.gauge.show()
		}
		r.timeouts = o.to.Timeouts.With("limit", "attempt")
		for reason := range noSkip {
			r.skipped[reason].to = o.to.RetriesSkipped.With("reason", reason.String())
		}
		return r
	}
}

type retry[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   RetryPolicy[Req, Rsp]
	replayer Replayer[Req, Rsp]
	requests bodyAccessor[Req]
	whole    bool  // responses have no body, so each is complete when Call returns
	tooLong  error // the cause of contexts that AttemptTimeout ended

	retries  tally
	gauge    budgetGauge
	skipped  [noSkip]tally
	timeouts interface{ Add(delta float64) }
}

func (r *retry[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if r.policy.MaxAttempts == 1 || WillRetry(ctx) {
		return r.attempt(ctx, req)
	}
	a := &attempt{budget: r.policy.Budget, retries: r.policy.CanRetry(req)}
	a.follow(ctx)
	if !a.retries {
		return r.send(a, req, nil)
	}
	replay := r.replayer.Replay(req, r.policy.MaxBodyBytes)
	if replay == nil {
		return r.send(a, req, nil)
	}
	defer replay.End()
	first, ok := replay.Next()
	if !ok {
		a.retries = false
		return r.send(a, req, nil)
	}
	return r.send(a, first, replay)
}

// attempt sends the request once. It applies AttemptTimeout until the response headers
// arrive.
func (r *retry[Req, Rsp]) attempt(ctx context.Context, req Req) (rsp Rsp, err error) {
	if r.policy.AttemptTimeout == 0 {
		return r.Service.Call(ctx, req)
	}
	e := new(requestContext)
	e.InitHidden(ctx, r.policy.AttemptTimeout, r.tooLong)
	returned := false
	defer r.dropUnless(&returned, &rsp, &err, e)
	rsp, err = r.Service.Call(&e.Context, req)
	switch {
	case err == nil && e.Lift():
		rsp = r.complete(&e.Context, rsp, e)
		returned = true
		return rsp, nil
	case err == nil: // the context has just ended
		late := rsp
		rsp = *new(Rsp)
		r.replayer.Drain(late)
	case ctx.Err() != nil || !e.Expired():
		return rsp, err
	}
	r.timeouts.Add(1)
	return rsp, &Error{
		Layer: "retry", Target: r.target, Kind: ErrAttemptTimeout,
		Reason: "limit of " + r.policy.AttemptTimeout.String() + " per attempt", Err: err,
	}
}

// send sends the first attempt, and further attempts if the first one fails. The argument
// replay is nil if req can be sent again unchanged or is not retried.
func (r *retry[Req, Rsp]) send(a *attempt, req Req, replay Replay[Req]) (rsp Rsp, err error) {
	returned := false
	defer r.dropUnless(&returned, &rsp, &err, nil)
	rsp, err = r.attempt(a, req)
	got := r.evaluate(a, replay, 1, rsp, err)
	if err == nil && a.hints.Explanation == nil && !r.policy.RetryIf(got.Outcome) {
		a.budget.Deposit()
		r.gauge.follow()
		rsp = got.whole
	} else {
		s := &retrying[Req, Rsp]{retry: r, ctx: a, req: req, replay: replay, attempts: 1}
		s.run(got, &rsp, &err)
	}
	returned = true
	return rsp, err
}

func (r *retry[Req, Rsp]) Describe() Node {
	state := State{{"attempts", r.policy.MaxAttempts}}
	if r.policy.AttemptTimeout > 0 {
		state = append(state, Attr{"per_attempt", r.policy.AttemptTimeout})
	}
	skipped := int64(0)
	for i := range r.skipped {
		skipped += r.skipped[i].n.Load()
	}
	return Node{Name: "retry", State: append(state,
		Attr{"budget", r.policy.Budget.Balance()}, Attr{"retries", r.retries.n.Load()}, Attr{"skipped", skipped})}
}

// attempt is the context of all attempts of one request. A Retry or Hedge below searches
// its context for an attempt, which shows that a Retry is above.
type attempt struct {
	attemptsContext
	budget  *Budget
	retries bool                  // whether the request is sent again after a failure
	route   atomic.Pointer[Route] // the route that WithRoute stored for the current attempt, or nil
}

type attemptKey struct{}

func (a *attempt) Value(key any) any {
	switch key {
	case attemptKey{}:
		return a
	case routeKey{}:
		if r := a.route.Load(); r != nil {
			return r
		}
	}
	return a.attemptsContext.Value(key)
}

// WillRetry reports whether a [Retry] above will send the request again if it fails. ctx is
// the context of the request. A protocol package calls WillRetry before it returns a
// response that may still turn out to be a failure.
func WillRetry(ctx context.Context) bool {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a != nil && a.retries
}

// deposits reports whether the nearest [Retry] above deposits into the budget b for the
// request with the context ctx.
func deposits(ctx context.Context, b *Budget) bool {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a != nil && a.budget == b
}

// retrying is the state of a request that may need another attempt.
type retrying[Req, Rsp any] struct {
	*retry[Req, Rsp]
	ctx    *attempt
	req    Req
	replay Replay[Req] // nil if req can be sent unchanged

	attempts int
	sent     bool          // at least one attempt was not rejected
	failed   error         // the error of the last attempt that was not rejected; nil if it had a response
	waited   time.Duration // the sum of the pauses
}

// run sends further attempts until none is needed or allowed. The argument got is the
// result of the first attempt. run sets *rsp and *err after each attempt, so that the
// caller can discard the response after a panic.
func (s *retrying[Req, Rsp]) run(got attemptResult[Rsp], rsp *Rsp, err *error) {
	for {
		if !got.rejected() {
			if !s.sent {
				s.sent = true
				s.ctx.budget.Deposit()
			}
			s.failed = got.Err
		}
		pause, why, again := s.decide(got)
		s.explain(got, why, again)
		if !again {
			*rsp, *err = got.whole, s.last(got, why)
			return
		}
		*rsp = *new(Rsp)
		if got.Err == nil {
			s.replayer.Drain(got.whole)
		}
		if *err = s.wait(pause, got.Err); *err != nil {
			return
		}
		s.attempts++
		s.retries.inc()
		s.ctx.route.Store(nil)
		*rsp, *err = s.attempt(s.ctx, s.req)
		got = s.evaluate(s.ctx, s.replay, s.attempts, *rsp, *err)
	}
}

// decide determines whether another attempt follows the attempt with the result got. If the result
// again is true, the next request is prepared, and the result pause is the time to wait before it
// is sent. If again is false, the result why is the reason. The reason noSkip is not counted. It
// means that the context has ended, that RetryIf excludes got, or that got is a rejection that is
// returned at once (see [Retry]).
func (s *retrying[Req, Rsp]) decide(got attemptResult[Rsp]) (pause time.Duration, why skip, again bool) {
	final := got.rejected() && (isFinal(got.Err) || errors.Is(got.Err, errShed))
	if s.ctx.Err() != nil || final || !s.policy.RetryIf(got.Outcome) {
		return 0, noSkip, false
	}
	pause, why = s.pause(got.Response, got.Err)
	switch {
	case s.attempts >= s.policy.MaxAttempts:
		why = skipAttempts
	case !got.rejected() && !s.ctx.retries:
		why = skipUnsafe
	case why == noSkip && !got.rejected():
		why = s.prepare()
	}
	if why != noSkip {
		s.skipped[why].inc()
		return 0, why, false
	}
	return pause, noSkip, true
}

// isFinal reports whether another attempt would be rejected too, because the argument rejection
// matches [ErrClosed] or [ErrFailFast].
func isFinal(rejection error) bool {
	return errors.Is(rejection, ErrClosed) || errors.Is(rejection, ErrFailFast)
}

// pause returns the time to wait before the next attempt: the longer of the backoff and the
// time that the service requests. If no attempt may follow, the second result is the
// reason. Otherwise it is noSkip.
func (s *retrying[Req, Rsp]) pause(rsp Rsp, err error) (time.Duration, skip) {
	pause := s.policy.Backoff.Delay(s.attempts - 1)
	after, asked := s.replayer.RetryAfter(rsp, err)
	if own, ok := RetryAfter(err); ok {
		after, asked = max(after, own), true
	}
	if asked && (after < 0 || after > s.policy.MaxRetryAfter) {
		return 0, skipPushback
	}
	pause = max(pause, after)
	if deadline, ok := s.ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return 0, skipDeadline
	}
	return pause, noSkip
}

// prepare sets s.req for the next attempt and withdraws from the budget. It returns noSkip,
// or the reason why no attempt may follow.
func (s *retrying[Req, Rsp]) prepare() skip {
	granted := s.policy.Budget.Withdraw()
	s.gauge.show()
	switch {
	case !granted:
		return skipBudget
	case s.replay == nil:
		return noSkip
	}
	next, ok := s.replay.Next()
	if !ok {
		return skipBody
	}
	s.requests.closeBody(s.req) // the attempt may have failed without closing it
	s.req = next
	return noSkip
}

// wait waits for the pause before the next attempt. If the context ends first, it returns
// the error of the request. The argument after is the error of the last attempt, or nil.
func (s *retrying[Req, Rsp]) wait(pause time.Duration, after error) error {
	began := time.Now()
	cause := backoff.Sleep(s.ctx, pause)
	s.waited += time.Since(began)
	if cause == nil && s.ctx.Err() != nil {
		cause = context.Cause(s.ctx)
	}
	if cause == nil {
		return nil
	}
	return s.canceled(cause, after)
}

// canceled returns the error of the request after its context has ended with the given cause. The
// argument after is the error of the last attempt, or nil.
func (s *retrying[Req, Rsp]) canceled(cause, after error) error {
	reason := ctxreason.Text(s.ctx) + " after " + s.count()
	e := &Error{Layer: "retry", Target: s.target, Reason: reason, Waited: s.waited, Err: cause}
	if after != nil {
		e.Reason += ": " + after.Error()
	}
	if !s.sent {
		e.Kind = ErrNotReady
	}
	s.closeBody()
	return e
}

// last returns the error that the Retry returns for the request, or nil if the result is a
// response. The argument got is the result of the last attempt. The argument why is the
// reason why no other attempt follows.
func (s *retrying[Req, Rsp]) last(got attemptResult[Rsp], why skip) error {
	switch {
	case got.Err == nil:
		return nil
	case got.rejected() && s.sent && s.ctx.Err() != nil:
		return s.canceled(context.Cause(s.ctx), got.Err)
	case got.rejected() && s.sent:
		// The request was sent, so this must not match ErrNotReady.
		after, _ := RetryAfter(got.Err)
		s.closeBody()
		kind := ErrRetryRejected
		if errors.Is(got.Err, ErrFailFast) {
			kind = ErrTimeout
		}
		return &Error{
			Layer: "retry", Target: s.target, Kind: kind, Waited: s.waited, RetryAfter: after, Err: s.failed,
			Reason: fmt.Sprintf("%s, the last rejected (%v)", s.count(), got.Err),
		}
	case s.attempts == 1 && why.text() == "":
		return got.Err
	}
	e := &Error{Layer: "retry", Target: s.target, Reason: s.count() + why.text(), Waited: s.waited, Err: got.Err}
	if below := (*Error)(nil); got.rejected() && errors.As(got.Err, &below) {
		e.Endpoint = below.Endpoint
	}
	return e
}

// closeBody closes the request body, unless all attempts were rejected. After a rejection,
// the caller of Retry closes the body itself.
func (s *retrying[Req, Rsp]) closeBody() {
	if s.sent && s.replay != nil {
		s.requests.closeBody(s.req)
	}
}

func (s *retrying[Req, Rsp]) count() string {
	if s.attempts == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", s.attempts)
}

// explain records in the Explanation of the request that another attempt follows, or the
// reason why not.
func (s *retrying[Req, Rsp]) explain(got attemptResult[Rsp], why skip, again bool) {
	to := s.ctx.hints.Explanation
	if to == nil {
		return
	}
	n := Node{Name: "retry"}
	if s.target != "" {
		n.State = append(n.State, Attr{"target", s.target})
	}
	if again {
		n.State = append(n.State, Attr{"attempt", s.attempts + 1}, Attr{"because", s.describe(got)})
	} else {
		n.State = append(n.State, Attr{"attempts", s.attempts})
		if why != noSkip {
			n.State = append(n.State, Attr{"failed", s.describe(got)}, Attr{"skipped", why.String()})
		}
	}
	n.State = append(n.State, Attr{"budget", s.policy.Budget.Balance()})
	to.Add(n)
}

// describe returns a short description of the result of an attempt, for the Explanation.
func (s *retrying[Req, Rsp]) describe(got attemptResult[Rsp]) string {
	if got.Err != nil {
		return got.Err.Error()
	}
	class := s.classify(got.Outcome).String()
	if r, ok := s.replayer.(interface{ Outline(rsp Rsp) string }); ok {
		return class + ": " + r.Outline(got.Response)
	}
	return class
}

// attemptResult is the result of one attempt, a response or an error.
type attemptResult[Rsp any] struct {
	Outcome[Rsp]     // the outcome to classify
	whole        Rsp // the response to return to the caller, with its whole body
}

func (a attemptResult[Rsp]) rejected() bool { return a.Err != nil && errors.Is(a.Err, ErrNotReady) }

// evaluate returns the outcome of an attempt that returned rsp and err, and the response for the
// caller. If the trailers of rsp may report a failure that can be retried, evaluate first waits for
// them.
func (r *retry[Req, Rsp]) evaluate(a *attempt, replay Replay[Req], attempts int, rsp Rsp, err error) attemptResult[Rsp] {
	got := attemptResult[Rsp]{Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && r.whole}, rsp}
	if err != nil || got.Ended || !a.retries || attempts >= r.policy.MaxAttempts {
		return got
	}
	// The server may wait for the rest of the request body before it sends its response body.
	if replay != nil && !replay.Whole() {
		return got
	}
	if got.whole, got.Ended = r.replayer.Peek(a, rsp); !got.Ended {
		got.Response = got.whole // rsp is still being read
	}
	return got
}

// skip is a reason why a Retry does not send a request again after a failed attempt.
type skip int

const (
	skipAttempts skip = iota
	skipUnsafe
	skipPushback
	skipDeadline
	skipBudget
	skipBody
	noSkip // the attempt succeeded, or the request was canceled
)

// String returns the value of the label "reason" in the metric RetriesSkipped.
func (s skip) String() string {
	return [...]string{"attempts", "unsafe", "pushback", "deadline", "budget", "body", "nothing"}[s]
}

// text returns the part of the error text that names the reason s. For skipAttempts, skipUnsafe and
// noSkip it returns "", because the number of attempts in the error text is enough.
func (s skip) text() string {
	return [...]string{
		"", "", "; the service requests a longer wait than allowed, or no retry", "; no time before the deadline",
		"; no budget", "; the request body cannot be sent again", "",
	}[s]
}
