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

// HedgePolicy configures a [Hedge]. Zero fields have their defaults.
type HedgePolicy[Req any] struct {
	// Budget limits the copies of all requests together. Share the Budget of a
	// [Retry] above, so that the two do not multiply. The default is
	// NewBudget(time.Second, 0.05, 1). A larger balance would be spent at once
	// when all endpoints become slow, and make them slower.
	Budget *Budget

	// Quantile of recent latencies after which a copy is sent: above 0 and
	// below 1, default 0.95.
	Quantile float64

	// MinSamples is the number of recent latencies needed for hedging: 1 to 1
	// 000 000, default 100, because the slowest five of fewer are chance.
	MinSamples int

	// MinDelay and MaxDelay bound the delay. MinDelay is 1 ms by default,
	// because an earlier copy costs more than it saves. MaxDelay is unlimited
	// by default. If both are equal, that is the delay and latencies are not
	// measured.
	MinDelay, MaxDelay time.Duration

	// MaxBodyBytes is the part of a request body that is kept for the copy:
	// default 64 KiB. Requests with larger bodies are not hedged. A negative
	// value keeps nothing.
	MaxBodyBytes int64

	// HedgeIf reports whether a request may be sent twice. The default is
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

// Validate returns an error that names the field that is out of range.
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

// filled returns p with defaults in place of zero fields.
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

// fixed reports whether the delay is constant.
func (p HedgePolicy[Req]) fixed() bool { return p.MinDelay == p.MaxDelay }

// Hedge sends a request a second time, to another endpoint, when it takes
// longer than most, and returns the first good response. The delay is a
// quantile of the latencies of the last 30 to 60 s, up to the headers of the
// response. There is at most one copy.
//
// Admission: none of its own; Ready is forwarded. A rejected copy is dropped.
// Place the layer below a [Queue], because copies must not wait in it.
//
// Cancellation: the caller's context ends both attempts. The losing attempt is
// canceled and its response is discarded.
//
// Body: the request body is kept while it is read, see [HedgePolicy]. The
// context of the returned response lives until the response ends, see
// [WithCompletion].
//
// Errors: a failed response, by its [Class], does not win while the other
// attempt is running. If both fail, the order is response, error, rejection,
// and then the first attempt. A panic of the first attempt reaches the caller;
// a panic of the copy is a failure with a [PanicError].
//
// Cost: a timer and one allocation; a goroutine only when a copy is sent. The
// first attempt runs on the caller's goroutine, so Call waits until a losing
// first attempt has returned.
//
// Each request deposits into the budget, unless a [Retry] above does. The
// sample is the latency of the first attempt, or its age when the copy won.
// Failures are not sampled.
func Hedge[Req, Rsp any](p HedgePolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	resend := replayerOf[Req](o)
	if p.HedgeIf == nil {
		p.HedgeIf = resend.Idempotent
	}
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		h := &hedge[Req, Rsp]{
			Service: next, options: o, policy: p, resend: resend, whole: !HasBody[Rsp](),
			requests: seamOf[Req](), made: time.Now(),
			latency: quantile{q: p.Quantile, least: int64(p.MinSamples), period: hedgePeriod},
		}
		h.sent.to = o.to.Hedges.With("outcome", "sent")
		h.won.to = o.to.Hedges.With("outcome", "won")
		h.skipped.to = o.to.Hedges.With("outcome", "skipped")
		h.shown.to, h.shown.budget = o.to.Budget, p.Budget
		h.shown.show()
		return h
	}
}

// hedgePeriod is half of the longest that a latency counts.
const hedgePeriod = 30 * time.Second

type hedge[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	policy HedgePolicy[Req]
	resend Replayer[Req, Rsp]
	whole  bool // a response is complete when Call returns it

	requests bodySeam[Req]
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
		return h.alone(ctx, req, start)
	}
	r := &hedgeRace[Req, Rsp]{hedge: h, req: req, start: start}
	r.ctx.follow(ctx)
	return r.run(delay)
}

// alone sends a request that will not be hedged, and takes its time.
func (h *hedge[Req, Rsp]) alone(ctx context.Context, req Req, start time.Duration) (rsp Rsp, err error) {
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			h.drop(rsp, err)
		}
	}()
	rsp, err = h.Service.Call(ctx, req)
	h.account(ctx, start, h.assess(ctx, rsp, err) == Success, err)
	returned = true
	return rsp, err
}

func (h *hedge[Req, Rsp]) now() time.Duration { return time.Since(h.made) }

// delay is how long to wait for the first request; false if for as long as it
// takes.
func (h *hedge[Req, Rsp]) delay(now time.Duration) (time.Duration, bool) {
	if h.policy.fixed() {
		return h.policy.MinDelay, true
	}
	d, ok := h.latency.at(now)
	return min(max(d, h.policy.MinDelay), h.policy.MaxDelay), ok
}

// assess is the class of an answer, as far as its head tells.
func (h *hedge[Req, Rsp]) assess(ctx context.Context, rsp Rsp, err error) Class {
	return h.judge(ctx, Outcome[Rsp]{Response: rsp, Err: err, Ended: err == nil && h.whole})
}

// account pays in for a first request that was sent, and takes its latency if
// that is a sample.
func (h *hedge[Req, Rsp]) account(ctx context.Context, start time.Duration, sample bool, err error) {
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

func (h *hedge[Req, Rsp]) Next() Service[Req, Rsp] { return h.Service }

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

// hedgeRace is one request and, once it has taken too long, its copy.
type hedgeRace[Req, Rsp any] struct {
	*hedge[Req, Rsp]
	ctx    triesContext
	req    Req
	replay Replay[Req] // nil if req can be sent unchanged
	start  time.Duration
	timer  *time.Timer
	first  hedgeLeg[Req, Rsp] // runs in the caller's goroutine

	mu     sync.Mutex
	second *hedgeLeg[Req, Rsp] // the copy; nil until it is sent
	over   bool                // one of the two has won
}

// hedgeLeg is one of the two.
type hedgeLeg[Req, Rsp any] struct {
	requestContext // its context
	req            Req
	rsp            Rsp
	err            error
	class          Class
	open           bool // rsp was neither returned nor discarded

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
	f.Init(&r.ctx, 0, nil)
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
			c.Cancel(errHedgeLost)
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

// giveUp releases an attempt that has returned and lost.
func (r *hedgeRace[Req, Rsp]) giveUp(l *hedgeLeg[Req, Rsp]) {
	defer l.End(nil)
	if l.err != nil && (l == &r.first || !l.rejected()) {
		// The request was sent, or failed on its way, so no service closes its
		// body. A rejected copy has closed its own.
		defer r.closeBody(l)
	}
	if l.open {
		l.open = false
		l.Cancel(errHedgeLost)
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

// end declares that the request is not sent again.
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
		c.Cancel(errHedgeLost)
	}
	r.end()
}

// closeBody closes the request body of one that failed, or was rejected.
func (r *hedgeRace[Req, Rsp]) closeBody(l *hedgeLeg[Req, Rsp]) {
	if r.replay != nil {
		r.requests.closeBody(l.req)
	}
}

func (l *hedgeLeg[Req, Rsp]) rejected() bool { return l.err != nil && errors.Is(l.err, ErrNotReady) }

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
	case !l.rejected():
		return 1
	}
	return 0
}

// hurry is the timer of a race: it sends the copy, in the timer's goroutine.
func (r *hedgeRace[Req, Rsp]) hurry() {
	c := &hedgeLeg[Req, Rsp]{done: make(chan struct{})}
	c.Init(&r.ctx, 0, nil)
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
	granted := budget.Withdraw()
	r.shown.show()
	if !granted {
		r.explain("no budget")
		return rsp, errHedgeSkipped
	}
	req := r.req
	if r.replay != nil {
		next, ok := r.replay.Next()
		if !ok {
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
		defer r.first.Cancel(errHedgeLost)
		defer r.won.inc()
	case late:
		defer r.giveUp(c)
	}
}

func (r *hedgeRace[Req, Rsp]) count(c *hedgeLeg[Req, Rsp]) {
	if c.rejected() {
		r.skipped.inc()
	} else {
		r.sent.inc()
	}
}

// explain records that the copy is sent now, or why it is not.
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
