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

// HedgePolicy configures a [Hedge]. A copy is the second attempt that Hedge sends for a
// slow request. A field that is 0 has its default value.
type HedgePolicy[Req any] struct {
	// Budget limits the number of copies of all requests together. Use the Budget of a
	// [Retry] above the Hedge, so that retries and copies do not multiply. The default is
	// NewBudget(time.Second, 0.05, 1). The default is small, because many copies at once
	// would make slow endpoints slower.
	Budget *Budget

	// Quantile determines the delay before a copy. A copy is sent when the request has
	// taken longer than this fraction of the recent requests. The value is above 0 and
	// below 1. The default is 0.95.
	Quantile float64

	// MinSamples is the number of recent latencies that must be known before copies are
	// sent: 1 to 1 000 000, default 100. A quantile of fewer latencies is not reliable.
	MinSamples int

	// MinDelay and MaxDelay bound the delay before a copy. The default of MinDelay is 1 ms,
	// because an earlier copy costs more than it saves. The default of MaxDelay is
	// unlimited. If both are equal, the delay is constant and latencies are not measured.
	MinDelay, MaxDelay time.Duration

	// MaxBodyBytes is the size of the largest request body that is stored for the copy:
	// default 64 KiB. A copy is sent only after the body was read to its end. If the value
	// is negative, only requests without a body are copied. All this does not apply to a
	// request with GetBody, because its body is not stored.
	MaxBodyBytes int64

	// HedgeIf reports whether a request may be sent twice. The default is the method
	// Idempotent of the [Replayer].
	HedgeIf func(req Req) bool
}

const (
	defaultHedgeQuantile = 0.95
	defaultHedgeSamples  = 100
	maxHedgeSamples      = 1_000_000
	leastHedgeDelay      = time.Millisecond
	defaultHedgeBody     = 64 << 10
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
	if p.Budget == nil {
		p.Budget = NewBudget(time.Second, 0.05, 1)
	}
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
// others. It returns the first successful response. The delay before the copy is a quantile of
// the latencies (to the response headers) of the last 30 to 60 s. There is at most one copy.
//
// Admission: every request is admitted. Ready is forwarded. Place the layer below a [Queue],
// because copies must not wait in it.
//
// Cancellation: the end of the caller's context cancels both attempts. When one attempt has
// won, the other is canceled and its response discarded.
//
// Body: no copy is sent while a stored request body is being read, see [HedgePolicy]. The context
// of the returned response ends with the response, see [WithCompletion].
//
// Errors: if the copy does not succeed, Hedge returns the result of the first attempt. If the first
// attempt was rejected, but a copy was sent and not rejected, the error does not match
// [ErrNotReady].
//
// Cost: a timer and one allocation; a goroutine only for a copy. The first attempt runs on the
// caller's goroutine, so Call waits until it returns, even if the copy has won. Each request
// deposits into the budget, unless a [Retry] above has the same budget.
func Hedge[Req, Rsp any](p HedgePolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	replayer := replayerOf[Req](o)
	if p.HedgeIf == nil {
		p.HedgeIf = replayer.Idempotent
	}
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		h := &hedge[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, policy: p, replayer: replayer, whole: !HasBody[Rsp](),
			requests: bodyAccessorOf[Req](), made: time.Now(),
			latency: quantile{q: p.Quantile, least: p.MinSamples, period: hedgePeriod},
		}
		h.sent.to = o.to.Hedges.With("outcome", "sent")
		h.won.to = o.to.Hedges.With("outcome", "won")
		h.skipped.to = o.to.Hedges.With("outcome", "skipped")
		h.shown.to, h.shown.budget = o.to.Budget, p.Budget
		h.shown.show()
		return h
	}
}

// hedgePeriod is half of the maximum age of the latencies from which the delay is computed.
const hedgePeriod = 30 * time.Second

type hedge[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   HedgePolicy[Req]
	replayer Replayer[Req, Rsp]
	whole    bool // responses have no body, so each is complete when Call returns

	requests bodyAccessor[Req]
	shown    budgetGauge

	made    time.Time
	latency quantile

	sent, won, skipped tally
}

func (h *hedge[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if !h.policy.HedgeIf(req) {
		return h.Service.Call(ctx, req)
	}
	start := h.now()
	delay, ok := h.delay(start)
	if !ok {
		return h.sendOnce(ctx, req, start)
	}
	r := &hedgeRace[Req, Rsp]{hedge: h, req: req, start: start}
	r.ctx.follow(ctx)
	r.first.Init(&r.ctx, 0, nil)
	r.first.req = req
	if r.replay = h.replayer.Replay(req, h.policy.MaxBodyBytes); r.replay != nil {
		defer r.replay.End()
		if r.first.req, ok = r.replay.Next(); !ok {
			return h.sendOnce(ctx, req, start)
		}
	}
	r.timer = time.AfterFunc(delay, r.sendCopy)
	return r.run()
}

// sendOnce sends a request for which no copy may be sent, and records its latency.
func (h *hedge[Req, Rsp]) sendOnce(ctx context.Context, req Req, start time.Duration) (rsp Rsp, err error) {
	returned := false
	defer h.dropUnless(&returned, &rsp, &err, nil)
	rsp, err = h.Service.Call(ctx, req)
	h.record(ctx, start, h.classifyHeaders(ctx, rsp, err) == Success, err)
	returned = true
	return rsp, err
}

func (h *hedge[Req, Rsp]) now() time.Duration { return time.Since(h.made) }

// delay returns the time to wait before a copy is sent. It returns false if fewer than
// MinSamples latencies are known. The argument now is the time since h.made.
func (h *hedge[Req, Rsp]) delay(now time.Duration) (time.Duration, bool) {
	if h.policy.fixed() {
		return h.policy.MinDelay, true
	}
	d, ok := h.latency.at(now)
	return min(max(d, h.policy.MinDelay), h.policy.MaxDelay), ok
}

func (h *hedge[Req, Rsp]) classifyHeaders(ctx context.Context, rsp Rsp, err error) Class {
	return h.classOf(ctx, Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && h.whole})
}

// record adds the latency of a first attempt to the quantile, if the argument sample is true and
// the delay is not fixed. It also deposits into the budget, with two exceptions: err, the error of
// the attempt, is a rejection, or a [Retry] above deposits into the same budget.
func (h *hedge[Req, Rsp]) record(ctx context.Context, start time.Duration, sample bool, err error) {
	if sample && !h.policy.fixed() {
		now := h.now()
		h.latency.record(now, now-start)
	}
	h.shown.follow()
	if err != nil && errors.Is(err, ErrNotReady) || deposits(ctx, h.policy.Budget) {
		return
	}
	h.policy.Budget.Deposit()
}

func (h *hedge[Req, Rsp]) Describe() Node {
	state := State{}
	if delay, ok := h.delay(h.now()); ok {
		state = append(state, Attr{"delay", delay})
	}
	if !h.policy.fixed() {
		state = append(state, Attr{"quantile", h.policy.Quantile})
	}
	if h.policy.MaxDelay < math.MaxInt64 && !h.policy.fixed() {
		state = append(state, Attr{"max", h.policy.MaxDelay})
	}
	return Node{Name: "hedge", State: append(state,
		Attr{"budget", h.policy.Budget.Balance()}, Attr{"sent", h.sent.n.Load()},
		Attr{"won", h.won.n.Load()}, Attr{"skipped", h.skipped.n.Load()})}
}

// hedgeRace is the state of one request: its first attempt and its copy.
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

// wins reports whether the result of the attempt is returned to the caller without waiting
// for the other attempt. The attempt wins with class Success, or with a response of class
// Ignorable.
func (a *hedgeAttempt[Req, Rsp]) wins() bool {
	return a.class == Success || a.err == nil && !a.class.IsFailure()
}

// run makes the first attempt and returns the result of the request. If the first attempt
// does not win and a copy was sent, run waits for the copy.
func (r *hedgeRace[Req, Rsp]) run() (Rsp, error) {
	f := &r.first
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			r.abandon()
		}
	}()
	f.rsp, f.err = r.Service.Call(&f.Context, f.req)
	f.open = f.err == nil
	f.class = r.classifyHeaders(f, f.rsp, f.err)
	r.timer.Stop()
	r.mu.Lock()
	c, lost := r.second, r.decided
	r.decided = lost || c == nil || f.wins()
	decided := r.decided
	r.mu.Unlock()
	r.record(r.ctx.Context, r.start, f.class == Success || lost, f.err)
	if c != nil && !decided {
		<-c.done
	}
	winner := f
	switch {
	case c == nil:
	case lost || !decided && c.won:
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

// finish returns the result of the attempt that has won. The context of the attempt is
// canceled when the response ends.
func (r *hedgeRace[Req, Rsp]) finish(a *hedgeAttempt[Req, Rsp]) (Rsp, error) {
	if a.err != nil {
		a.End(nil)
		return a.rsp, a.err
	}
	rsp := r.complete(&a.Context, a.rsp, a)
	a.open = false
	return rsp, nil
}

// discard cancels the context of an attempt that has returned but has not won, and discards its
// response. If the attempt has failed, discard also closes its request body, because the failure
// may precede the read of the body.
func (r *hedgeRace[Req, Rsp]) discard(a *hedgeAttempt[Req, Rsp]) {
	defer a.End(nil)
	if a.err != nil && r.replay != nil {
		defer r.requests.closeBody(a.req)
	}
	if a.open {
		a.open = false
		a.Cancel(errHedgeLost)
		r.replayer.Drain(a.rsp)
	}
}

// abandon discards both attempts after the first attempt panicked on the caller's
// goroutine. It cancels a copy that is still running.
func (r *hedgeRace[Req, Rsp]) abandon() {
	r.timer.Stop()
	r.mu.Lock()
	c := r.second
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

// sendCopy sends the copy, unless the race is decided. The timer calls sendCopy on a new
// goroutine.
func (r *hedgeRace[Req, Rsp]) sendCopy() {
	c := &hedgeAttempt[Req, Rsp]{done: make(chan struct{})}
	c.Init(&r.ctx, 0, nil)
	r.mu.Lock()
	if r.decided {
		r.mu.Unlock()
		return
	}
	r.second = c
	r.mu.Unlock()
	defer close(c.done)
	defer func() {
		if !c.won {
			_ = panics.Contain(func() { r.discard(c) })
		}
	}()
	c.err = panics.ErrExited // unless it returns
	defer panics.Recover(&c.err)
	if !r.prepare(c) {
		r.skipped.inc()
		return
	}
	c.sent = true
	rsp, err := r.Service.Call(&c.Context, c.req)
	c.rsp, c.open = rsp, err == nil
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
	if !r.decided && c.wins() {
		r.decided, c.won = true, true
		_ = panics.Contain(r.won.inc)
		r.first.Cancel(errHedgeLost)
	}
}

// prepare sets c.req, the request of the copy. It returns true if the copy may be sent: the
// request body can be sent again and the budget grants a withdrawal.
func (r *hedgeRace[Req, Rsp]) prepare(c *hedgeAttempt[Req, Rsp]) bool {
	c.req = r.req
	if r.replay != nil {
		ok := r.replay.Whole()
		if ok {
			c.req, ok = r.replay.Next()
		}
		if !ok {
			c.req = *new(Req)
			r.explain("the request body cannot be sent again")
			return false
		}
	}
	granted := r.policy.Budget.Withdraw()
	r.shown.show()
	if !granted {
		r.explain("no budget")
		return false
	}
	r.explain("")
	return true
}

// explain adds a record about the copy to the Explanation of the request. The argument skipped is
// the reason why no copy is sent. If it is "", the record says that a copy is sent.
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
