package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/ctxreason"
)

// Retry sends a request again when it failed and another attempt may help: the
// [Classifier] says so, the attempt was too late, or it was rejected. Failed
// requests are retried if they are idempotent, within the [Budget] and after a
// pause. Rejected requests are retried without charge. Rejections by limits,
// rate limits, [Shed] and [Queue] are returned at once, because another attempt
// would add load.
//
// Admission: none of its own; Ready is forwarded. A request that was never sent
// ends as a rejection.
//
// Cancellation: the end of the context ends the pause and all attempts. A pause
// beyond the caller's deadline is not started; the failure is returned. All
// attempts share one [Attempts], so that a balancer below chooses another
// endpoint.
//
// Body: the request body is kept while it is read, see [RetryPolicy]. A dropped
// response is drained, if it is short, and closed. No retry follows after a
// response was returned, but see [RetryPolicy.Peek]. The context of an attempt
// lives until its response ends, see [WithCompletion].
//
// Errors: the last response is returned whatever its class. An error is wrapped
// in an [Error] with the number of attempts and the reason for the end. If a
// later attempt was rejected after one was sent, the kind is
// [ErrRetryRejected], or [ErrTimeout] after fail-fast. A late attempt has kind
// [ErrAttemptTimeout].
//
// Cost: one allocation and the copy of the body; with AttemptTimeout a timer
// and a context.
//
// Nested retries do not multiply: below a Retry that will retry, another one
// only applies its AttemptTimeout. A [Hedge] below should share the Budget.
func Retry[Req, Rsp any](policy RetryPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(policy)
	policy = policy.filled()
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

// skip is why a failure is not tried again.
type skip int

const (
	skipTries skip = iota
	skipUnsafe
	skipPushback
	skipDeadline
	skipBudget
	skipBody
	skipNothing // it was no failure, or nobody waits for another try
)

// String is the label of the instrument Skipped.
func (s skip) String() string {
	return [...]string{"tries", "unsafe", "pushback", "deadline", "budget", "body", "nothing"}[s]
}

// say returns what an error tells of a skip that is not plain from the number
// of tries.
func (s skip) say() string {
	switch s {
	case skipPushback:
		return "; told to wait for longer than allowed, or for good"
	case skipDeadline:
		return "; no time before the deadline"
	case skipBudget:
		return "; no budget"
	case skipBody:
		return "; the request body cannot be sent again"
	default:
		return ""
	}
}

// retrying is a request whose first try did not go well.
type retrying[Req, Rsp any] struct {
	*retry[Req, Rsp]
	ctx    *attempt
	req    Req
	replay Replay[Req] // nil where req can be sent as it is

	tries  int
	sent   bool          // one of them at least was not refused
	failed error         // of those, what the last one returned
	waited time.Duration // between tries

	charged bool  // the budget has paid for a try that was not sent yet
	entry   int64 // where it says so
}

// run takes the outcome of the first try, and makes the others. rsp and err are what
// the last one returned, at any time: a panic discards the response.
func (s *retrying[Req, Rsp]) run(got answer[Rsp], rsp *Rsp, err *error) {
	for {
		got.refused = errors.Is(got.err, ErrNotReady)
		switch {
		case !got.refused:
			s.count(got.err)
		case s.unreached(got.err):
			got.unreached, s.charged = true, false // it was that try's
		}
		pause, why, again := s.weigh(got)
		s.explain(got, why, again)
		if !again {
			s.giveBack()
			*rsp, *err = got.ahead, s.last(got, why)
			return
		}
		*rsp = *new(Rsp)
		if got.err == nil {
			s.resend.Drain(got.ahead)
		}
		if *err = s.wait(pause, got.err); *err != nil {
			return
		}
		s.tries++
		s.retries.inc()
		*rsp, *err = s.try(s.ctx, s.req)
		got = s.look(s.ctx, s.replay, s.tries, *rsp, *err)
	}
}

// count notes a try that was not refused. The first of a request pays in to
// the budget.
func (s *retrying[Req, Rsp]) count(err error) {
	if !s.sent {
		s.sent = true
		s.ctx.pay()
	}
	s.failed, s.charged = err, false
}

// weigh decides on another try, and makes the request ready for it.
func (s *retrying[Req, Rsp]) weigh(got answer[Rsp]) (pause time.Duration, why skip, again bool) {
	if s.ctx.Err() != nil || !s.mayHelp(got) {
		return 0, skipNothing, false
	}
	pause, why = s.pause(got.rsp, got.err)
	switch {
	case s.tries >= s.policy.MaxAttempts:
		why = skipTries
	case !got.refused && !s.ctx.again:
		why = skipUnsafe
	case why == skipNothing && (!got.refused || got.unreached):
		why = s.takeOut(got.refused)
	}
	if why != skipNothing {
		s.skipped[why].inc()
		return 0, why, false
	}
	return pause, skipNothing, true
}

// mayHelp reports whether the same request might fare better.
func (s *retrying[Req, Rsp]) mayHelp(got answer[Rsp]) bool {
	switch {
	case got.refused:
		return got.unreached || !s.policy.PassRejections && !forGood(got.err) && !errors.Is(got.err, errShed)
	case errors.Is(got.err, ErrAttemptTimeout):
		return true
	}
	return s.policy.RetryIf(got.outcome())
}

// pause is how long to wait before the next try: the back-off, or what the
// service asks for if that is longer.
func (s *retrying[Req, Rsp]) pause(rsp Rsp, err error) (time.Duration, skip) {
	pause := s.policy.Backoff.Delay(s.tries - 1)
	after, asked := s.resend.RetryAfter(rsp, err)
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
	return pause, skipNothing
}

// takeOut withdraws from the budget, and gets the body for the next try, unless
// the last one left it as it was.
func (s *retrying[Req, Rsp]) takeOut(untouched bool) skip {
	s.entry, s.charged = s.policy.Budget.withdraw()
	s.shown.show()
	switch {
	case !s.charged:
		return skipBudget
	case untouched || s.replay == nil:
		return skipNothing
	}
	next, ok := s.replay.Next()
	if !ok {
		return skipBody
	}
	s.req = next
	if r, ok := s.replay.(interface{ Retire() }); ok {
		r.Retire()
	}
	return skipNothing
}

// giveBack returns to the budget what was taken for a try that was not sent.
func (s *retrying[Req, Rsp]) giveBack() {
	if s.charged {
		s.charged = false
		s.policy.Budget.refund(s.entry)
		s.shown.show()
	}
}

// wait pauses, unless the caller goes.
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
	s.giveBack()
	gone := &Error{Layer: "retry", Target: s.target, Reason: ctxreason.Text(s.ctx) + " after " + s.howMany(), Waited: s.waited, Err: cause}
	if after != nil {
		gone.Reason += ": " + after.Error()
	}
	if !s.sent {
		gone.Kind = ErrNotReady
	}
	s.letGo()
	return gone
}

// last is the error to return when there are no more tries.
func (s *retrying[Req, Rsp]) last(got answer[Rsp], why skip) error {
	switch {
	case got.err == nil:
		return nil
	case got.refused && s.sent:
		// Something was sent, so nobody may take this for a refusal.
		after, _ := RetryAfter(got.err)
		s.letGo()
		kind := ErrRetryRejected
		if errors.Is(got.err, ErrFailFast) {
			kind = ErrTimeout
		}
		return &Error{
			Layer: "retry", Target: s.target, Kind: kind, Waited: s.waited, RetryAfter: after, Err: s.failed,
			Reason: fmt.Sprintf("%s, the last refused (%v)", s.howMany(), got.err),
		}
	case s.tries == 1 && why.say() == "":
		return got.err
	}
	e := &Error{Layer: "retry", Target: s.target, Reason: s.howMany() + why.say(), Waited: s.waited, Err: got.err}
	if below := (*Error)(nil); got.unreached && errors.As(got.err, &below) {
		e.Endpoint = below.Endpoint // it is still that one which refuses
	}
	return e
}

// letGo closes the request body that the last try did not take.
func (s *retrying[Req, Rsp]) letGo() {
	if c, ok := s.replay.(io.Closer); ok && s.sent {
		c.Close()
	}
}

func (s *retrying[Req, Rsp]) howMany() string {
	if s.tries == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", s.tries)
}

// attempt is the context of every try of one request: the caller's, with what
// the layers below look for. It is all that the first try has to make.
type attempt struct {
	triesContext

	budget *Budget
	paid   bool // somebody above pays in to budget
	again  bool // failures of this request are retried
}

type retryKey struct{}

func (a *attempt) Value(key any) any {
	if key == (retryKey{}) {
		return a
	}
	return a.triesContext.Value(key)
}

// retryAbove is the attempt of the nearest Retry above, or nil, of which every
// method may be called.
func retryAbove(ctx context.Context) *attempt {
	a, _ := ctx.Value(retryKey{}).(*attempt)
	return a
}

// retries reports whether a Retry, this one or one above it, will send the
// request again if it fails.
func (a *attempt) retries() bool {
	for ; a != nil; a = retryAbove(a.Context) {
		if a.again {
			return true
		}
	}
	return false
}

// WillRetry reports whether a [Retry] above the service that is called with ctx sends
// the request again if it fails. It is for a protocol in which a response may be
// returned before it is known whether it failed.
func WillRetry(ctx context.Context) bool { return retryAbove(ctx).retries() }

// paysTo reports whether a Retry, this one or one above it, pays in to b for
// the request. Who shares a budget with it does not pay again.
func (a *attempt) paysTo(b *Budget) bool {
	for ; a != nil; a = retryAbove(a.Context) {
		if a.budget == b {
			return true
		}
	}
	return false
}

func (a *attempt) pay() {
	if !a.paid {
		a.budget.Deposit()
	}
}

// explain tells whoever asked why the request is tried again, or how often it
// was and why it is not again.
func (s *retrying[Req, Rsp]) explain(got answer[Rsp], why skip, again bool) {
	to := s.ctx.hints.Explanation
	if to == nil {
		return
	}
	n := Node{Name: "retry"}
	if s.target != "" {
		n.State = append(n.State, Attr{"target", s.target})
	}
	if again {
		n.State = append(n.State, Attr{"try", s.tries + 1}, Attr{"because", s.because(got)})
	} else {
		n.State = append(n.State, Attr{"tries", s.tries})
		if why != skipNothing {
			n.State = append(n.State, Attr{"failed", s.because(got)}, Attr{"skipped", why.String()})
		}
	}
	n.State = append(n.State, Attr{"budget", s.policy.Budget.Balance()})
	to.Add(n)
}

// because says what is wrong with the outcome of a try.
func (s *retrying[Req, Rsp]) because(got answer[Rsp]) string {
	if got.err != nil {
		return got.err.Error()
	}
	class := s.classify(got.outcome()).String()
	if say, ok := s.resend.(interface{ Outline(rsp Rsp) string }); ok {
		return class + ": " + say.Outline(got.rsp)
	}
	return class
}

// TrailerPeeker is what a [Replayer] may have beside its methods, for protocols in which a
// response can fail after its head: [Retry] uses it where [RetryPolicy] asks
// for it.
type TrailerPeeker[Rsp any] interface {
	// Peek waits for the first piece of the body of rsp, and reports whether
	// the response is whole: whether its end came in place of that piece, or
	// right after it. Then rsp can be judged with its trailers. The response to
	// hand on is ahead, which has all of the body still to be read, and trailers
	// not before that was. Where rsp is not whole, only ahead may be looked at: the
	// end of rsp may be coming at that moment. Peek ends when ctx does.
	Peek(ctx context.Context, rsp Rsp) (ahead Rsp, whole bool)
}

// answer is what came of a try.
type answer[Rsp any] struct {
	rsp   Rsp  // to judge
	ended bool // with its trailers
	ahead Rsp  // the same response, to hand on
	err   error

	refused   bool
	unreached bool // and tried again all the same
}

func (a answer[Rsp]) outcome() Outcome[Rsp] {
	return Outcome[Rsp]{Response: a.rsp, Err: a.err, Ended: a.err == nil && a.ended}
}

// look takes what a try returned, and looks ahead in it where its trailers would
// be reason for another try.
func (r *retry[Req, Rsp]) look(a *attempt, replay Replay[Req], tries int, rsp Rsp, err error) answer[Rsp] {
	got := answer[Rsp]{rsp: rsp, ended: r.whole, ahead: rsp, err: err}
	if err != nil || r.peek == nil || !a.again || tries >= r.policy.MaxAttempts || !r.policy.Peek(rsp) {
		return got
	}
	// One who is still sending may be waiting for the head before he goes on; and
	// where the body cannot be sent again, there is nothing to look for.
	if body, ok := replay.(interface{ Whole() bool }); ok && !body.Whole() {
		return got
	}
	if got.ahead, got.ended = r.peek.Peek(a, rsp); !got.ended {
		got.rsp = got.ahead // the other one is still being read
	}
	return got
}

// unreached reports whether a refusal is tried again although others are passed.
func (s *retrying[Req, Rsp]) unreached(refusal error) bool {
	return s.policy.PassRejections && s.policy.RetryConnectFailure != nil && !forGood(refusal) && s.policy.RetryConnectFailure(refusal)
}

// forGood reports whether the next try would be refused as this one was.
func forGood(refusal error) bool {
	return errors.Is(refusal, ErrClosed) || errors.Is(refusal, ErrFailFast)
}
