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
// not sent. It is retried without using the budget, unless a limit, [Shed] or [Queue] rejected it, a
// [Breaker] stays open for longer than the pause, or the rejection matches [ErrClosed].
//
// Admission: every request is admitted. If all attempts were rejected, so is the request.
//
// Cancellation: when the context ends, so do the pause and all attempts. The context's end is the
// error's cause. All attempts share one [Attempts], so that a balancer below chooses another endpoint.
//
// Body: the request body is stored while it is read, see [RetryPolicy]. If trailers may report a
// failure, Call waits for the first bytes of the response body, see [Protocol].
//
// Errors: Retry returns the last response, even if it is a failure. An error is wrapped in an [Error]
// with the number of attempts. A rejection after an attempt that was sent is of kind
// [ErrRetryRejected], or [ErrTimeout] if it matches [ErrFailFast].
//
// Cost: one allocation and the body's copy. Of nested Retry layers, only the outermost one retries. A
// [Hedge] below should usually share the Budget, and sends no copy of a retry.
func Retry[Req, Rsp any](policy RetryPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(policy)
	policy = policy.filled()
	protocol := protocolOf[Req](o)
	if policy.CanRetry == nil {
		policy.CanRetry = protocol.Idempotent
	}
	if policy.RetryIf == nil {
		policy.RetryIf = func(out Outcome[Rsp]) bool {
			// Rejections and attempt timeouts come from this process, so they are retried whatever the classifier says.
			local := out.Err != nil && (errors.Is(out.Err, ErrNotReady) || errors.Is(out.Err, ErrAttemptTimeout))
			return local || o.classify(out).IsRetryable()
		}
	}
	whole := !HasBody[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		// With one attempt and no time limit, there is nothing to do.
		if policy.MaxAttempts == 1 && policy.AttemptTimeout == 0 {
			return next
		}
		r := &retry[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, policy: policy, protocol: protocol, requests: bodyAccessorOf[Req](), whole: whole,
		}
		r.warnOfRandom()
		r.tooLong = &kind{"over the limit of " + policy.AttemptTimeout.String() + " per attempt", ErrAttemptTimeout}
		r.retries.counter = o.instruments.Retries
		r.retries.counter.Add(0)
		r.gauge.gauge, r.gauge.budget = o.instruments.Budget, policy.Budget
		if policy.MaxAttempts > 1 {
			r.gauge.show()
		}
		r.timeouts = o.instruments.Timeouts.With("limit", "attempt")
		// noSkip is the last constant, and so the number of reasons.
		for reason := range noSkip {
			r.skipped[reason].counter = o.instruments.RetriesSkipped.With("reason", reason.String())
		}
		return r
	}
}

// Retry adds a [Retry] layer, which sends a failed request again if another attempt may succeed.
func (s Stack[Req, Rsp]) Retry(p RetryPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("retry", Retry(p, s.opts...))
}

// retry is the service of [Retry].
type retry[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   RetryPolicy[Req, Rsp]
	protocol Protocol[Req, Rsp]
	requests bodyAccessor[Req]
	whole    bool  // responses have no body, so each is complete when Call returns
	tooLong  error // the cause of contexts that AttemptTimeout ended

	retries  tally                           // attempts after the first one
	gauge    budgetGauge                     // publishes the balance of the budget as a metric
	skipped  [noSkip]tally                   // failures that were not retried, by reason
	timeouts interface{ Add(delta float64) } // attempts that exceeded AttemptTimeout
}

// warnOfRandom logs a warning if attempts have a time limit above a balancer that picks at random.
func (r *retry[Req, Rsp]) warnOfRandom() {
	// The check needs a log to warn, and the problem needs a short time limit.
	if r.log == nil || r.policy.AttemptTimeout == 0 {
		return
	}
	stack := Describe(r.Service)
	// The balancer is somewhere below this layer.
	for node := &stack; node != nil; node = node.Next {
		if node.Name == "balance" && node.State.Get("pick") == "random" {
			r.log.Warn("a random picker makes the queues of endpoints uneven, so that many attempts exceed a short AttemptTimeout "+
				"at a high load: set it to at least fifteen times the mean response time, or use the default Picker",
				"target", r.target, "per_attempt", r.policy.AttemptTimeout)
		}
	}
}

// Call sends req, and sends it again after a failure, if the policy and the budget allow that.
func (r *retry[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if r.policy.MaxAttempts == 1 || WillRetry(ctx) { // a Retry above repeats the request already
		return r.attempt(ctx, req)
	}
	a := &attempt{budget: r.policy.Budget, retries: r.policy.CanRetry(req)}
	if a.follow(ctx); a.hints.Copy { // a Hedge above has sent this copy
		return r.attempt(ctx, req)
	}
	// A request that is not idempotent is only repeated after a rejection, which needs no copy of its body.
	if !a.retries {
		return r.send(a, req, nil)
	}
	replay := r.protocol.Replay(req, r.policy.MaxBodyBytes)
	if replay == nil {
		return r.send(a, req, nil)
	}
	defer replay.End()
	first, ok := replay.Next()
	// The body can be sent only once.
	if !ok {
		a.retries = false
		return r.send(a, req, nil)
	}
	return r.send(a, first, replay)
}

// attempt sends the request once, with AttemptTimeout as the limit until the response headers arrive.
func (r *retry[Req, Rsp]) attempt(ctx context.Context, req Req) (rsp Rsp, err error) {
	if r.policy.AttemptTimeout == 0 {
		return r.Service.Call(ctx, req)
	}
	// The limit ends when the response headers arrive, but the context must live until the body has ended.
	e := new(requestContext)
	e.InitPausable(ctx, r.policy.AttemptTimeout, r.tooLong)
	returned := false // for dropUnless: the caller gets rsp
	defer r.dropUnless(&returned, &rsp, &err, e)
	rsp, err = r.Service.Call(&e.Context, req)
	switch {
	// Lift removes the time limit and leaves the context open for the body.
	case err == nil && e.Lift():
		rsp = r.complete(&e.Context, rsp, e)
		returned = true
		return rsp, nil
	case err == nil: // the context has just ended
		response := rsp
		rsp = *new(Rsp)
		r.protocol.Drain(response)
	// The request failed for another reason than this limit.
	case ctx.Err() != nil || !e.Expired():
		return rsp, err
	}
	r.timeouts.Add(1)
	return rsp, &Error{
		Layer: "retry", Target: r.target, Kind: ErrAttemptTimeout,
		Reason: "limit of " + r.policy.AttemptTimeout.String() + " per attempt", Err: err,
	}
}

// send sends the first attempt, and further ones if it fails. It returns the request's result. replay
// is nil if req can be sent again as it is, or not at all.
func (r *retry[Req, Rsp]) send(a *attempt, req Req, replay Replay[Req]) (rsp Rsp, err error) {
	returned := false // for dropUnless: the caller gets rsp
	// If evaluating the outcome panics, this discards the response.
	defer r.dropUnless(&returned, &rsp, &err, nil)
	rsp, err = r.attempt(a, req)
	result := r.evaluate(a, replay, 1, rsp, err)
	// Most requests succeed at the first attempt. They need no state for others.
	if err == nil && a.hints.Explanation == nil && !r.policy.RetryIf(result.Outcome) {
		a.budget.Deposit()
		r.gauge.follow()
		rsp = result.whole
	} else {
		s := &retrying[Req, Rsp]{retry: r, ctx: a, req: req, replay: replay, attempts: 1}
		s.run(result, &rsp, &err)
	}
	returned = true
	return rsp, err
}

// Describe returns the limits, the balance of the budget, and the numbers of retries.
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

// attempt is the context of all attempts of one request. It tells layers below, with WillRetry and
// deposits, that there is a Retry above.
type attempt struct {
	attemptsContext
	budget  *Budget
	retries bool                  // whether the request is sent again after a failure
	route   atomic.Pointer[Route] // the route that WithRoute stored for the current attempt, or nil
}

// attemptKey is the key for which the method Value of an *attempt returns the *attempt.
type attemptKey struct{}

// Value returns the attempt for attemptKey, and its route, if it has one, for routeKey. All other values come from
// the context of the request.
func (a *attempt) Value(key any) any {
	switch key {
	case attemptKey{}:
		// The attempt's own values come first; everything else is in the request's context.
		return a
	case routeKey{}:
		if r := a.route.Load(); r != nil {
			return r
		}
	}
	return a.attemptsContext.Value(key)
}

// WillRetry reports whether a [Retry] above may send the request again if it fails, which depends on the
// failure: its policy retries only some of them, and its budget may be empty. ctx is the request
// context. A protocol package calls WillRetry before it returns a response that may still turn out to be
// a failure.
func WillRetry(ctx context.Context) bool {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a != nil && a.retries
}

// deposits reports whether a [Retry] above counts the request with the context ctx in the budget b, so
// that a layer below must not count it again.
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

// run sends further attempts until none is needed or allowed. result is that of the first one. run sets
// *rsp and *err after each attempt, instead of returning them, so that the caller can discard the
// response if a later attempt panics.
func (s *retrying[Req, Rsp]) run(result attemptResult[Rsp], rsp *Rsp, err *error) {
	for {
		if !result.rejected() {
			// A request deposits once: at its first attempt that was not rejected.
			if !s.sent {
				s.sent = true
				s.ctx.budget.Deposit()
			}
			s.failed = result.Err
		}
		pause, reason, resend := s.decide(result)
		s.explain(result, reason, resend)
		if !resend {
			*rsp, *err = result.whole, s.last(result, reason)
			return
		}
		// Forget the failed response before it is drained, so that a panic of Drain does not drain it
		// again.
		*rsp = *new(Rsp)
		if result.Err == nil {
			s.protocol.Drain(result.whole)
		}
		if *err = s.wait(pause, result.Err); *err != nil {
			return
		}
		s.attempts++
		s.retries.inc()
		s.ctx.route.Store(nil) // the next attempt may take another route
		// From the second attempt on, layers below send no copies of their own.
		ctx := context.Context(s.ctx)
		if s.sent {
			ctx = asCopy(ctx)
		}
		if s.policy.LastUnlimited && s.attempts == s.policy.MaxAttempts {
			*rsp, *err = s.Service.Call(ctx, s.req)
		} else {
			*rsp, *err = s.attempt(ctx, s.req)
		}
		result = s.evaluate(s.ctx, s.replay, s.attempts, *rsp, *err)
	}
}

// decide determines whether another attempt follows after result. If resend is true, s.req is the
// request for it, and it should be sent after pause. Otherwise reason tells why not. noSkip means that
// nothing prevents it but it is not wanted: the context has ended, RetryIf excludes the result, or it
// is a rejection to be returned immediately (see [Retry]).
func (s *retrying[Req, Rsp]) decide(result attemptResult[Rsp]) (pause time.Duration, reason skip, resend bool) {
	// A limit that has shed the request would only get more load from a retry.
	final := result.rejected() && (isFinal(result.Err) || errors.Is(result.Err, errShed))
	if s.ctx.Err() != nil || final || !s.policy.RetryIf(result.Outcome) {
		return 0, noSkip, false
	}
	pause, reason = s.pause(result.Response, result.Err)
	// The number of attempts and an unsafe request are the more important reasons, so they replace that of pause.
	switch {
	case s.attempts >= s.policy.MaxAttempts:
		reason = skipAttempts
	case !result.rejected() && !s.ctx.retries:
		reason = skipUnsafe
	case reason == noSkip && !result.rejected(): // a rejected request was not sent, and can be sent as it is
		reason = s.prepare()
	}
	if reason != noSkip {
		s.skipped[reason].inc()
		return 0, reason, false
	}
	return pause, noSkip, true
}

// isFinal reports whether another attempt would be rejected too, because rejection matches
// [ErrClosed] or [ErrFailFast].
func isFinal(rejection error) bool {
	return errors.Is(rejection, ErrClosed) || errors.Is(rejection, ErrFailFast)
}

// pause returns how long to wait before the next attempt: the backoff, or the time that the service
// asks for if that is longer. reason is noSkip, or why no attempt may follow.
func (s *retrying[Req, Rsp]) pause(rsp Rsp, err error) (time.Duration, skip) {
	pause := s.policy.Backoff.Delay(s.attempts - 1)
	delay, hasDelay := s.protocol.RetryAfter(rsp, err)
	// A rejection of this process, such as by a breaker, may also name a time.
	if localDelay, ok := RetryAfter(err); ok {
		delay, hasDelay = max(delay, localDelay), true
	}
	longest := s.policy.MaxRetryAfter
	if errors.Is(err, errOpen) {
		// Requests that wait for the probe of an open breaker would all be sent when it closes, and
		// open it again.
		longest = min(longest, pause)
	}
	// A negative delay means that the service does not want a retry.
	if hasDelay && (delay < 0 || delay > longest) {
		return 0, skipPushback
	}
	if !errors.Is(err, ErrNotReady) { // another endpoint may admit a rejected request earlier
		pause = max(pause, delay)
	}
	// No time would be left for an attempt after the pause.
	if deadline, ok := s.ctx.Deadline(); ok && time.Until(deadline) <= pause {
		return 0, skipDeadline
	}
	return pause, noSkip
}

// prepare withdraws from the budget and sets s.req, the request of the next attempt. It returns noSkip,
// or why there is no attempt. The budget comes first, because replay.Next may invalidate the request
// body of the last attempt, whose response is still needed if no attempt follows.
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

// wait waits for the pause before the next attempt. It returns nil, or the error for the request if the
// context ends first. lastErr is the error of the last attempt, or nil.
func (s *retrying[Req, Rsp]) wait(pause time.Duration, lastErr error) error {
	start := time.Now()
	cause := backoff.Sleep(s.ctx, pause)
	s.waited += time.Since(start)
	// The context may have ended together with the pause.
	if cause == nil && s.ctx.Err() != nil {
		cause = context.Cause(s.ctx)
	}
	if cause == nil {
		return nil
	}
	return s.canceled(cause, lastErr)
}

// canceled returns the request's error after its context has ended with the given cause. lastErr
// is the last attempt's error, or nil.
func (s *retrying[Req, Rsp]) canceled(cause, lastErr error) error {
	reason := ctxreason.Text(s.ctx) + " after " + s.count()
	e := &Error{Layer: "retry", Target: s.target, Reason: reason, Waited: s.waited, Err: cause}
	if lastErr != nil {
		e.Reason += ": " + lastErr.Error()
	}
	// No attempt has reached an endpoint, so the request can safely be sent elsewhere.
	if !s.sent {
		e.Kind = ErrNotReady
	}
	// No further attempt will read the body.
	s.closeBody()
	return e
}

// last returns the error for the request when no other attempt follows, or nil if the last attempt had
// a response. reason tells why no other follows.
func (s *retrying[Req, Rsp]) last(result attemptResult[Rsp], reason skip) error {
	switch {
	case result.Err == nil:
		return nil
	case result.rejected() && s.sent && s.ctx.Err() != nil:
		return s.canceled(context.Cause(s.ctx), result.Err)
	case result.rejected() && s.sent:
		// The request was sent, so this must not match ErrNotReady.
		retryAfter, _ := RetryAfter(result.Err)
		s.closeBody()
		kind := ErrRetryRejected
		if errors.Is(result.Err, ErrFailFast) {
			kind = ErrTimeout
		}
		return &Error{
			Layer: "retry", Target: s.target, Kind: kind, Waited: s.waited, RetryAfter: retryAfter, Err: s.failed,
			Reason: fmt.Sprintf("%s, the last rejected (%v)", s.count(), result.Err),
		}
	case s.attempts == 1 && reason.text() == "": // nothing to add
		return result.Err
	}
	e := &Error{Layer: "retry", Target: s.target, Reason: s.count() + reason.text(), Waited: s.waited, Err: result.Err}
	// Name the endpoint of the rejection, which errors.As would otherwise not find in the outermost Error.
	if inner := (*Error)(nil); result.rejected() && errors.As(result.Err, &inner) {
		e.Endpoint = inner.Endpoint
	}
	return e
}

// closeBody closes the request body, which is Retry's duty unless all attempts were rejected. Then the
// caller may still send the request elsewhere.
func (s *retrying[Req, Rsp]) closeBody() {
	if s.sent && s.replay != nil {
		s.requests.closeBody(s.req)
	}
}

// count returns the number of attempts as text.
func (s *retrying[Req, Rsp]) count() string {
	if s.attempts == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", s.attempts)
}

// explain adds to the request's Explanation, if there is one, that another attempt follows or why not.
func (s *retrying[Req, Rsp]) explain(result attemptResult[Rsp], reason skip, resend bool) {
	explanation := s.ctx.hints.Explanation
	if explanation == nil {
		return
	}
	n := Node{Name: "retry"}
	if s.target != "" {
		n.State = append(n.State, Attr{"target", s.target})
	}
	if resend {
		n.State = append(n.State, Attr{"attempt", s.attempts + 1}, Attr{"because", s.describe(result)})
	} else {
		n.State = append(n.State, Attr{"attempts", s.attempts})
		if reason != noSkip {
			n.State = append(n.State, Attr{"failed", s.describe(result)}, Attr{"skipped", reason.String()})
		}
	}
	n.State = append(n.State, Attr{"budget", s.policy.Budget.Balance()})
	explanation.Add(n)
}

// describe returns a short description of an attempt's result, for the Explanation.
func (s *retrying[Req, Rsp]) describe(result attemptResult[Rsp]) string {
	if result.Err != nil {
		return result.Err.Error()
	}
	class := s.classify(result.Outcome).String()
	if outline := s.protocol.Outline(result.Response); outline != "" {
		return class + ": " + outline
	}
	return class
}

// attemptResult is one attempt's result, a response or an error.
type attemptResult[Rsp any] struct {
	Outcome[Rsp]     // the outcome to classify
	whole        Rsp // the response to return to the caller, with its whole body
}

// rejected reports whether the attempt was rejected, so that nothing was sent.
func (a attemptResult[Rsp]) rejected() bool { return a.Err != nil && errors.Is(a.Err, ErrNotReady) }

// evaluate returns the result of an attempt that returned rsp and err. If only the trailers can tell
// whether it failed, and another attempt is possible, evaluate first waits for them.
func (r *retry[Req, Rsp]) evaluate(a *attempt, replay Replay[Req], attempts int, rsp Rsp, err error) attemptResult[Rsp] {
	result := attemptResult[Rsp]{Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && r.whole}, rsp}
	// Only if another attempt is possible does it matter what the trailers say.
	if err != nil || result.Ended || !a.retries || attempts >= r.policy.MaxAttempts {
		return result
	}
	// The server may wait for the rest of the request body before it sends its response body.
	if replay != nil && !replay.Whole() {
		return result
	}
	if result.whole, result.Ended = r.protocol.Peek(a, rsp); !result.Ended {
		result.Response = result.whole // rsp is still being read
	}
	return result
}

// skip is a reason why a Retry does not send a request again after a failed attempt.
type skip int

// The reasons are in the order of the texts in skip.String.
const (
	skipAttempts skip = iota
	skipUnsafe        // the service has got the request, and CanRetry does not allow another attempt
	skipPushback      // the service asked for a longer wait, or for no retry
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
// noSkip that is "", because the error text already tells the number of attempts.
func (s skip) text() string {
	return [...]string{
		"", "", "; the service requests a longer wait than allowed, or no retry", "; no time before the deadline",
		"; no budget", "; the request body cannot be sent again", "",
	}[s]
}
