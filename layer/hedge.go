package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// HedgePolicy configures a [Hedge]. A copy is the second attempt that Hedge sends for a slow
// request. Fields that are 0 use their defaults.
type HedgePolicy[Req any] struct {
	// Budget is a second limit for copies, which they share with other attempts. Use the
	// Budget of a [Retry] above the Hedge, so that retries and copies do not add up. Every
	// Hedge also has a small budget of its own, which is not configurable: copies of 5 % of
	// the requests of the last second, and one a second. A copy needs room in both. A request
	// deposits into both, but not into one that a Retry above has too. The default is nil:
	// only the budget of the Hedge.
	Budget *Budget

	// Quantile determines the delay before a copy. A copy is sent once the request has taken
	// longer than this fraction of recent requests. The value is above 0 and below 1. The default
	// is 0.95.
	Quantile float64

	// MinSamples is how many recent latencies must be known before copies are sent: 1 to 1 000
	// 000, default 100. With fewer, the quantile is not reliable.
	MinSamples int

	// MinDelay and MaxDelay bound the delay before a copy. MinDelay defaults to 1 ms, because an
	// earlier copy costs more than it saves. MaxDelay is unlimited by default. If both are equal,
	// the delay is constant and latencies are not measured.
	MinDelay, MaxDelay time.Duration

	// MaxBodyBytes is the size of the largest request body that is stored for the copy:
	// default 64 KiB. A copy is sent only after the body was read to its end. If the value
	// is negative, only requests without a body are copied. All this does not apply to a
	// request with GetBody, because its body is not stored.
	MaxBodyBytes int64

	// HedgeIf reports whether a request may be sent twice. The default is the method
	// Idempotent of the [Protocol].
	HedgeIf func(req Req) bool
}

// The defaults and limits of a HedgePolicy.
const (
	defaultHedgeQuantile = 0.95
	defaultHedgeSamples  = 100
	maxHedgeSamples      = 1_000_000
	leastHedgeDelay      = time.Millisecond
	defaultHedgeBody     = 64 << 10

	// A Hedge's budget. It is small and forgets after a second, because copies are sent when the
	// service is slow, and a slow service may be an overloaded one.
	hedgeRatio     = 0.05
	hedgePerSecond = 1
)

// Validate returns an error that names the first field that is out of range, or nil.
func (p HedgePolicy[Req]) Validate() error {
	switch {
	case p.Quantile != 0 && !(p.Quantile > 0 && p.Quantile < 1):
		return fmt.Errorf("HedgePolicy.Quantile is %v, must be above 0 and below 1", p.Quantile)
	case p.MinSamples < 0 || p.MinSamples > maxHedgeSamples:
		return fmt.Errorf("HedgePolicy.MinSamples is %d, must be 1 to %d", p.MinSamples, maxHedgeSamples)
	case p.MinDelay < 0:
		return fmt.Errorf("HedgePolicy.MinDelay is %v, must be at least 0", p.MinDelay)
	case p.MaxDelay < 0 || p.MaxDelay > 0 && p.MaxDelay < p.MinDelay:
		return fmt.Errorf("HedgePolicy.MaxDelay is %v, must be at least MinDelay, %v", p.MaxDelay, p.MinDelay)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields.
func (p HedgePolicy[Req]) filled() HedgePolicy[Req] {
	p.Quantile = cmp.Or(p.Quantile, defaultHedgeQuantile)
	p.MinSamples = cmp.Or(p.MinSamples, defaultHedgeSamples)
	p.MaxDelay = cmp.Or(p.MaxDelay, math.MaxInt64)
	p.MinDelay = cmp.Or(p.MinDelay, min(leastHedgeDelay, p.MaxDelay))
	p.MaxBodyBytes = bodyLimit(p.MaxBodyBytes, defaultHedgeBody)
	return p
}

// fixed reports whether the delay before a copy is constant.
func (p HedgePolicy[Req]) fixed() bool { return p.MinDelay == p.MaxDelay }

// Hedge sends a copy of a request to another endpoint when the request takes longer than most
// others. It returns the first successful response. The delay before the copy is a quantile of the
// latencies (to the response headers) in the last 30 to 60 s. There is at most one copy, and none if
// the request is itself a copy or a retry. At most 5 % of the last second's requests are copied,
// because more copies would turn a short overload into a lasting one.
//
// Admission: every request is admitted. Ready is forwarded. The layer should be below a [Queue],
// because copies must not wait in it.
//
// Cancellation: the end of the caller's context cancels both attempts. When one attempt has won, the
// other is canceled and its response discarded.
//
// Body: no copy is sent while a stored request body is being read, see [HedgePolicy]. The returned
// response's context ends with the response, see [WithCompletion].
//
// Errors: if the copy does not succeed, Hedge returns the result of the first attempt. If that is a
// rejection, but the copy was not rejected, the error does not match [ErrNotReady].
//
// Cost: a timer and one allocation; a goroutine only for a copy. The first attempt runs on the
// caller's goroutine, so that Call waits until it returns, even if the copy has won.
func Hedge[Req, Rsp any](p HedgePolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	protocol := protocolOf[Req](o)
	if p.HedgeIf == nil {
		// The protocol knows which requests have an effect if they are sent twice.
		p.HedgeIf = protocol.Idempotent
	}
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		h := &hedge[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, policy: p, protocol: protocol, whole: !HasBody[Rsp](),
			requests: bodyAccessorOf[Req](), start: time.Now(),
			budget:  NewBudget(time.Second, hedgeRatio, hedgePerSecond),
			latency: quantile{q: p.Quantile, minSamples: p.MinSamples, period: hedgePeriod},
		}
		h.sent.counter = o.instruments.Hedges.With("outcome", "sent")
		h.won.counter = o.instruments.Hedges.With("outcome", "won")
		h.skipped.counter = o.instruments.Hedges.With("outcome", "skipped")
		h.shown.gauge, h.shown.budget = o.instruments.Budget, cmp.Or(p.Budget, h.budget)
		h.shown.show()
		return h
	}
}

// Hedge adds a [Hedge] layer, which sends a copy of a request that takes longer than most others.
func (s Stack[Req, Rsp]) Hedge(p HedgePolicy[Req]) Stack[Req, Rsp] {
	return s.With("hedge", Hedge(p, s.opts...))
}

// hedgePeriod is half the maximum age of the latencies from which the delay is computed.
const hedgePeriod = 30 * time.Second

// hedge is the service of [Hedge].
type hedge[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   HedgePolicy[Req]
	protocol Protocol[Req, Rsp]
	whole    bool // responses have no body, so each is complete when Call returns

	budget   *Budget // limits the copies of this Hedge; Budget of the policy limits them too
	requests bodyAccessor[Req]
	shown    budgetGauge // publishes the balance of the budget as a metric

	start   time.Time // the origin of all points in time, which are durations
	latency quantile  // of recent first attempts; the delay is one of its quantiles

	sent, won, skipped tally // copies that were sent, that were used, and that could not be sent
}

// Call sends req, and a copy of it after the delay if there is no response by then. The first response
// wins. Requests that cannot be copied are sent once.
func (h *hedge[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if !h.policy.HedgeIf(req) {
		return h.Service.Call(ctx, req)
	}
	start := h.now()
	delay, ok := h.delay(start)
	if !ok { // too few latencies are known
		return h.sendOnce(ctx, req, start)
	}
	// The race holds everything that two attempts need. follow makes its context a child of ctx.
	r := &hedgeRace[Req, Rsp]{hedge: h, req: req, start: start}
	if r.ctx.follow(ctx); r.ctx.hints.Copy {
		return h.sendOnce(ctx, req, start)
	}
	// 0 means no time limit: the context only makes it possible to cancel the attempt when it loses.
	r.first.Init(&r.ctx, 0, nil) // no time limit
	r.first.req = req
	// A nil Replay means that both attempts can send req as it is.
	if r.replay = h.protocol.Replay(req, h.policy.MaxBodyBytes); r.replay != nil {
		defer r.replay.End()
		if r.first.req, ok = r.replay.Next(); !ok { // the body can be sent only once
			return h.sendOnce(ctx, req, start)
		}
	}
	// From here on, sendCopy may run concurrently with run.
	r.timer = time.AfterFunc(delay, r.sendCopy)
	return r.run()
}

// sendOnce sends a request without a copy, and records its latency, from which later delays are
// computed.
func (h *hedge[Req, Rsp]) sendOnce(ctx context.Context, req Req, start time.Duration) (rsp Rsp, err error) {
	// If the classifier panics, this discards the response.
	returned := false // for dropUnless: the caller gets rsp
	defer h.dropUnless(&returned, &rsp, &err, nil)
	rsp, err = h.Service.Call(ctx, req)
	h.record(ctx, start, h.classifyHeaders(ctx, rsp, err) == Success, err)
	returned = true
	return rsp, err
}

// now returns the time since the layer was made, by the monotonic clock.
func (h *hedge[Req, Rsp]) now() time.Duration { return time.Since(h.start) }

// delay returns how long to wait for a first attempt before a copy is sent. It returns false if fewer
// than MinSamples latencies are known. now is the time since h.start.
func (h *hedge[Req, Rsp]) delay(now time.Duration) (time.Duration, bool) {
	if h.policy.fixed() {
		return h.policy.MinDelay, true
	}
	d, ok := h.latency.value(now)
	return min(max(d, h.policy.MinDelay), h.policy.MaxDelay), ok
}

// classifyHeaders returns the class of an attempt when Call has returned, which for a response with a
// body means when its headers have arrived.
func (h *hedge[Req, Rsp]) classifyHeaders(ctx context.Context, rsp Rsp, err error) Class {
	return h.classOf(ctx, Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && h.whole})
}

// record is called for each first attempt. It adds the latency to the quantile, if sample is true and
// the delay is not fixed. It also deposits into both budgets, except after a rejection, and except for
// a budget into which a [Retry] above deposits already. err is the attempt's error.
func (h *hedge[Req, Rsp]) record(ctx context.Context, start time.Duration, sample bool, err error) {
	// With a fixed delay, latencies are not needed.
	if sample && !h.policy.fixed() {
		now := h.now()
		h.latency.record(now, now-start)
	}
	// show and follow keep the gauge of the budget up to date.
	h.shown.follow()
	// A rejected request has put no load on the service, and so pays nothing in.
	if err != nil && errors.Is(err, ErrNotReady) {
		return
	}
	h.budget.Deposit()
	// If a Retry with the same budget is above this layer, that one has paid in.
	if h.policy.Budget != nil && !deposits(ctx, h.policy.Budget) {
		h.policy.Budget.Deposit()
	}
}

// withdraw reports whether both budgets allow one more copy. It asks the Hedge's own budget first: if
// that does not allow the copy, nothing is taken from the policy's budget, which may be shared with retries.
func (h *hedge[Req, Rsp]) withdraw() bool {
	return h.budget.Withdraw() && (h.policy.Budget == nil || h.policy.Budget.Withdraw())
}

// balance returns the number of copies that both budgets would allow now.
func (h *hedge[Req, Rsp]) balance() int {
	n := h.budget.Balance()
	if h.policy.Budget != nil {
		n = min(n, h.policy.Budget.Balance())
	}
	return n
}

// Describe returns the current delay, what it is computed from, and the numbers of copies.
func (h *hedge[Req, Rsp]) Describe() Node {
	state := State{}
	if delay, ok := h.delay(h.now()); ok {
		// As long as there are too few samples, there is no delay.
		state = append(state, Attr{"delay", delay})
	}
	if !h.policy.fixed() {
		state = append(state, Attr{"quantile", h.policy.Quantile})
	}
	if h.policy.MaxDelay < math.MaxInt64 && !h.policy.fixed() {
		state = append(state, Attr{"max", h.policy.MaxDelay})
	}
	return Node{Name: "hedge", State: append(state,
		Attr{"budget", h.balance()}, Attr{"sent", h.sent.n.Load()},
		Attr{"won", h.won.n.Load()}, Attr{"skipped", h.skipped.n.Load()})}
}

// hedgeRace is the state of a request of which a copy may be sent: the first attempt and the copy
// compete, and the first success wins.
type hedgeRace[Req, Rsp any] struct {
	*hedge[Req, Rsp]
	ctx    attemptsContext
	req    Req
	replay Replay[Req] // nil if req can be sent unchanged
	start  time.Duration
	timer  *time.Timer
	first  hedgeAttempt[Req, Rsp] // runs on the caller's goroutine

	mu      sync.Mutex
	second  *hedgeAttempt[Req, Rsp] // the copy; nil before it is sent
	decided bool                    // one attempt has won
}

// hedgeAttempt is the first attempt or the copy. Its context is canceled when it loses.
type hedgeAttempt[Req, Rsp any] struct {
	requestContext // the context of the attempt
	req            Req
	rsp            Rsp
	err            error
	class          Class
	open           bool // rsp must still be returned or discarded

	// The fields sent, won and done are used only for the copy, not for the first attempt.
	sent bool          // the copy was sent and not rejected
	won  bool          // the result of the copy is returned; guarded by the mutex of the race
	done chan struct{} // closed when the copy has returned
}

// errHedgeLost is the cause with which the attempt that did not win is canceled.
var errHedgeLost = errors.New("another copy of the request was answered first")

// wins reports whether the attempt's result can be returned without waiting for the other attempt: it
// succeeded, or it is a response that does not count.
func (a *hedgeAttempt[Req, Rsp]) wins() bool {
	return a.class == Success || a.err == nil && !a.class.IsFailure()
}

// run makes the first attempt and returns the request's result, which is that of the copy if the copy
// won. If the first attempt did not win and a copy is in flight, run waits for the copy.
func (r *hedgeRace[Req, Rsp]) run() (Rsp, error) {
	f := &r.first
	returned := false
	defer func() {
		// A panic must not leave the copy running.
		if !returned { // a panic, or Goexit
			r.abandon()
		}
	}()
	f.rsp, f.err = r.Service.Call(&f.Context, f.req)
	f.open = f.err == nil
	f.class = r.classifyHeaders(f, f.rsp, f.err)
	r.timer.Stop()
	r.mu.Lock()
	c := r.second // if it is nil, decided keeps sendCopy from sending a copy
	// The copy may have won while the first attempt was in flight (isDecided). Otherwise the first attempt wins now, if
	// it succeeded or there is no copy.
	isDecided := r.decided
	r.decided = isDecided || c == nil || f.wins()
	decided := r.decided
	r.mu.Unlock()
	// A first attempt that the copy has beaten counts too, although it was canceled: without the slow ones, the delay
	// would become too short.
	r.record(r.ctx.Context, r.start, f.class == Success || isDecided, f.err)
	// Nothing has won so far. The copy may still succeed.
	if c != nil && !decided {
		<-c.done
	}
	winner := f
	// Cases: there was no copy; the copy has won; the first attempt was rejected, but the copy may have reached the
	// service, so that the error must not match ErrNotReady; or the first attempt's result is returned.
	switch {
	case c == nil:
	case isDecided || !decided && c.won:
		winner = c
		r.discard(f)
	case f.err != nil && errors.Is(f.err, ErrNotReady) && !decided && c.sent:
		if r.replay != nil {
			r.requests.closeBody(f.req) // the caller of Hedge closes it only after a rejection
		}
		f.err = &Error{Layer: "hedge", Target: r.target, Reason: "after a copy was sent: " + f.err.Error(), Err: c.err}
	default:
		c.Cancel(errHedgeLost)
	}
	rsp, err := r.finish(winner)
	returned = true
	return rsp, err
}

// finish returns the result of the attempt a, which has won. Its context is canceled when the response
// ends.
func (r *hedgeRace[Req, Rsp]) finish(a *hedgeAttempt[Req, Rsp]) (Rsp, error) {
	if a.err != nil {
		// End releases the context.
		a.End(nil)
		return a.rsp, a.err
	}
	rsp := r.complete(&a.Context, a.rsp, a)
	a.open = false
	return rsp, nil
}

// discard gets rid of an attempt that has returned without winning: it cancels its context, and
// discards its response. If the attempt failed, it also closes its request body, because the attempt
// may have failed before anything could close it.
func (r *hedgeRace[Req, Rsp]) discard(a *hedgeAttempt[Req, Rsp]) {
	// End, even if one of the calls below panics.
	defer a.End(nil)
	// After an error, the attempt's copy of the body may still be open.
	if a.err != nil && r.replay != nil {
		defer r.requests.closeBody(a.req)
	}
	// The response is not needed: the attempt is canceled and the rest of the response discarded.
	if a.open {
		a.open = false
		a.Cancel(errHedgeLost)
		r.protocol.Drain(a.rsp)
	}
}

// abandon cleans up after a panic of the first attempt: it discards its response, and the copy's if
// that has won, or else cancels the copy.
func (r *hedgeRace[Req, Rsp]) abandon() {
	r.timer.Stop()
	r.mu.Lock()
	c := r.second
	// If the copy has won, nothing else discards its response.
	won := c != nil && c.won
	r.decided = true
	r.mu.Unlock()
	defer r.discard(&r.first)
	switch {
	case won:
		r.discard(c)
	case c != nil:
		c.Cancel(errHedgeLost)
	}
}

// sendCopy sends the copy, unless the race is decided. It is the timer's function, so it runs on its
// own goroutine.
func (r *hedgeRace[Req, Rsp]) sendCopy() {
	c := &hedgeAttempt[Req, Rsp]{done: make(chan struct{})}
	c.Init(asCopy(&r.ctx), 0, nil) // no time limit
	r.mu.Lock()
	if r.decided {
		r.mu.Unlock()
		return
	}
	r.second = c // from now on, run waits for it
	r.mu.Unlock()
	// Deferred calls run in reverse order, so c.done is closed when everything else is over.
	defer close(c.done)
	defer func() {
		// A copy that has won is left to run, which returns its result.
		if !c.won {
			_ = panics.Contain(func() { r.discard(c) })
		}
	}()
	c.err = panics.ErrExited // stays so if Call ends the goroutine
	defer panics.Recover(&c.err)
	if !r.prepare(c) {
		r.skipped.inc()
		return
	}
	c.sent = true
	rsp, err := r.Service.Call(&c.Context, c.req)
	c.rsp, c.open = rsp, err == nil
	// A rejected copy was not sent, so it counts as skipped.
	c.sent = err == nil || !errors.Is(err, ErrNotReady)
	count := &r.sent
	if !c.sent {
		count = &r.skipped
	}
	count.inc()
	c.class = r.classifyHeaders(c, rsp, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	c.err = err
	// The mutex decides between this copy and the first attempt, which takes it in run.
	if !r.decided && c.wins() {
		r.decided, c.won = true, true
		_ = panics.Contain(r.won.inc)
		r.first.Cancel(errHedgeLost)
	}
}

// prepare decides whether the copy may be sent, and sets c.req, its request. It may if the body was
// read to its end and is stored, so that it can be sent again, and both budgets allow it.
func (r *hedgeRace[Req, Rsp]) prepare(c *hedgeAttempt[Req, Rsp]) bool {
	c.req = r.req
	// The request has a body, so each attempt needs its own copy.
	if r.replay != nil {
		// A body that is still being read may yet fail, so a copy waits for its end.
		ok := r.replay.Whole()
		if ok {
			c.req, ok = r.replay.Next()
		}
		if !ok {
			// c.req is reset, so that the caller does not close a body that belongs to another attempt.
			c.req = *new(Req)
			r.explain("the request body cannot be sent again")
			return false
		}
	}
	// withdraw takes one from each budget.
	granted := r.withdraw()
	r.shown.show()
	if !granted {
		r.explain("no budget")
		return false
	}
	r.explain("")
	return true
}

// explain adds a record about the copy to the Explanation of the request. skipped is the reason why
// no copy is sent. If it is "", the record says that a copy is sent.
func (r *hedgeRace[Req, Rsp]) explain(skipped string) {
	explanation := r.ctx.hints.Explanation
	if explanation == nil {
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
	n.State = append(n.State, Attr{"budget", r.balance()})
	explanation.Add(n)
}
