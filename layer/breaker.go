package layer

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
)

// BreakerPolicy configures a [Breaker]. Its defaults are those of linkerd's failure
// accrual. With the zero policy, the breaker opens after seven consecutive failures.
type BreakerPolicy struct {
	ConsecutiveFailures int           // failures in a row that open the breaker; 0 means 7, below 0 disables this
	MinSuccessRate      float64       // the share of successes below which the breaker opens, 0 to 1; 0 disables this (linkerd uses 0.8)
	Window              time.Duration // the period for which the success rate is measured, at least 10 ms; 0 means 10 s
	MinRequests         int           // requests in Window that are needed to apply MinSuccessRate, up to 1 000 000; 0 means 5

	// Backoff is the time that the breaker waits before it sends a probe. The time grows
	// with each failed probe. By default it is 1 s to 60 s with a jitter of 0.5. If only
	// Min or Max is 0, that field has its default.
	Backoff Backoff

	// If RetryAfter is true, the wait before a probe is at least the time that the last
	// failed response requests. The wait is never longer than Backoff.Max. See [Replayer]
	// for how a response requests a wait. linkerd's failure accrual does not extend the
	// wait.
	RetryAfter bool
}

// UnifiedBreaker returns the policy that linkerd calls unified. The breaker opens after
// seven consecutive failures. It also opens if at least 5 requests were sent in 10 s and
// less than 80 % of them succeeded.
func UnifiedBreaker() BreakerPolicy { return BreakerPolicy{MinSuccessRate: 0.8}.filled() }

const (
	breakerMinWindow   = 10 * time.Millisecond
	breakerMaxRequests = 1_000_000
)

// Validate returns an error that names the first field that is out of range, or nil.
func (p BreakerPolicy) Validate() error {
	switch {
	case !(p.MinSuccessRate >= 0 && p.MinSuccessRate <= 1):
		return fmt.Errorf("BreakerPolicy.MinSuccessRate is %v, must be 0 to 1", p.MinSuccessRate)
	case p.Window != 0 && p.Window < breakerMinWindow:
		return fmt.Errorf("BreakerPolicy.Window is %v, must be at least %v", p.Window, breakerMinWindow)
	case p.MinRequests < 0 || p.MinRequests > breakerMaxRequests:
		return fmt.Errorf("BreakerPolicy.MinRequests is %d, must be 0 to %d", p.MinRequests, breakerMaxRequests)
	}
	if err := backoff.Check(p.Backoff); err != nil {
		return fmt.Errorf("BreakerPolicy.Backoff: %w", err)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields.
func (p BreakerPolicy) filled() BreakerPolicy {
	p.ConsecutiveFailures = cmp.Or(p.ConsecutiveFailures, 7)
	p.Window = cmp.Or(p.Window, 10*time.Second)
	p.MinRequests = cmp.Or(p.MinRequests, 5)
	if p.Backoff == (Backoff{}) {
		p.Backoff.Jitter = 0.5
	}
	p.Backoff.Max = cmp.Or(p.Backoff.Max, max(time.Minute, p.Backoff.Min))
	p.Backoff.Min = cmp.Or(p.Backoff.Min, min(time.Second, p.Backoff.Max))
	return p
}

// Breaker stops sending requests to a failing service, and probes it with one request at a time
// at growing intervals. It counts failures like linkerd's failure accrual. While it is open, it
// is not ready, so that a balancer above uses other endpoints.
//
// Admission: a closed breaker admits every request. An open one rejects requests until its wait
// is over. Then it admits one request as a probe. If the probe succeeds, the breaker closes. If
// it fails, a longer wait starts. Requests with [PastBreakers] are always admitted. Ready waits
// until a probe may be sent or the breaker is closed, then for inner.
//
// Cancellation: a request is rejected if its context has ended. [Ignorable] outcomes and panics
// do not count.
//
// Body: a failure in the headers counts at once. Any other response counts when it ends,
// trailers included (see [WithCompletion]). Use [AtReturn] if probes may be endless streams.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady] with the reason. Its RetryAfter is
// the time to the next probe. A [Throttled] response lowers the success rate and fails a probe,
// but is not one of the consecutive failures.
//
// Cost: two atomic loads for a success, an allocation for a body, and a lock for MinSuccessRate.
func Breaker[Req, Rsp any](p BreakerPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if p.ConsecutiveFailures < 0 && p.MinSuccessRate == 0 {
			return next
		}
		b := &breaker[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			policy:   p,
			trips:    tally{to: o.to.BreakerOpened},
			rejected: tally{to: o.to.LayerRejections.With("layer", "breaker")},
			tripped:  &breakerGauge{to: o.to.BreakerOpen},
		}
		runtime.AddCleanup(b, (*breakerGauge).forget, b.tripped)
		b.now.Store(b.closed())
		o.to.BreakerOpened.Add(0)
		o.to.BreakerOpen.Add(0)
		return b
	}
}

type breaker[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   BreakerPolicy
	now      atomic.Pointer[breakerPeriod]
	changed  notify.Broadcast
	trips    tally
	rejected tally
	tripped  *breakerGauge

	// spare is an Observer for the next response, or nil. If a response has ended at once,
	// because it has no body, its Observer is stored here. This saves an allocation.
	spare atomic.Pointer[breakerObserver[Req, Rsp]]
}

// breakerGauge records the amount that one breaker has added to the gauge BreakerOpen: 1
// while the breaker is open or probing, else 0. A cleanup subtracts the amount when the
// breaker is garbage-collected, because a breaker has no Close.
type breakerGauge struct {
	to metrics.Gauge
	n  atomic.Int64
}

func (g *breakerGauge) add(n int64) {
	g.n.Add(n)
	g.to.Add(float64(n))
}

func (g *breakerGauge) forget() {
	if n := g.n.Load(); n != 0 {
		_ = panics.Contain(func() { g.to.Add(float64(-n)) })
	}
}

func (b *breaker[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := b.wait(ctx); err != nil {
			return err
		}
		if err := b.Service.Ready(ctx); err != nil {
			return err
		}
		if b.now.Load().admits() {
			return nil
		}
	}
}

// wait returns nil when the breaker is closed or a probe may be sent. If ctx ends first, it
// returns a rejection.
func (b *breaker[Req, Rsp]) wait(ctx context.Context) error {
	for {
		p := b.now.Load()
		switch {
		case p.admits():
			return nil
		case ctx.Err() != nil:
			return b.reject(p, context.Cause(ctx))
		}
		until, stop := p.untilProbe(ctx)
		// The loop checks again, because an available probe precedes the end of ctx.
		_ = b.changed.Wait(until, func() bool { return b.now.Load() != p || p.admits() })
		stop()
	}
}

func (b *breaker[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "breaker", b.target)
	}
	p := b.now.Load()
	if p.trip != nil {
		if p, err = b.probe(p); err != nil {
			if PickInfoFromContext(ctx).PastBreakers {
				return b.Service.Call(ctx, req)
			}
			b.rejected.inc()
			return rsp, err
		}
	}
	classified := false
	defer func() {
		if !classified { // a panic, or Goexit
			defer b.decide(p, Ignorable, Outcome[Rsp]{})
			b.drop(rsp, err)
		}
	}()
	rsp, err = b.Service.Call(ctx, req)
	out := Outcome[Rsp]{Response: rsp, Err: err, Ended: b.bare && err == nil}
	class := b.classOf(ctx, out)
	switch {
	case err == nil && !b.bare && !class.IsFailure():
		rsp = b.watch(ctx, rsp, p)
	case class == Success && p.clean():
	default:
		b.decide(p, class, out)
	}
	classified = true
	return rsp, err
}

func (b *breaker[Req, Rsp]) Describe() Node {
	p, now := b.now.Load(), time.Now()
	state := State{{"state", p.String()}}
	if p.trip != nil {
		state = append(state,
			Attr{"reason", p.trip.reason},
			Attr{"failed_probes", p.trip.probes},
			Attr{"next_probe", max(p.trip.probe.Sub(now), 0).Round(time.Millisecond)})
	} else {
		state = append(state, Attr{"failures", p.failures.Load()})
		if p.window != nil {
			good, all := p.window.sum(now)
			state = append(state, Attr{"ratio", breakerRatio(good, all)}, Attr{"requests", all})
		}
	}
	state = append(state, Attr{"trips", b.trips.n.Load()}, Attr{"rejected", b.rejected.n.Load()})
	if b.policy.ConsecutiveFailures > 0 {
		state = append(state, Attr{"max_failures", b.policy.ConsecutiveFailures})
	}
	if b.policy.MinSuccessRate > 0 {
		state = append(state,
			Attr{"min_ratio", b.policy.MinSuccessRate}, Attr{"min_requests", b.policy.MinRequests}, Attr{"window", b.policy.Window})
	}
	return Node{Name: "breaker", State: state}
}

// decide counts the outcome of one request, which has the class c, and opens or closes the
// breaker if necessary. The argument p is the period that admitted the request. decide is
// called at most once per request.
func (b *breaker[Req, Rsp]) decide(p *breakerPeriod, c Class, out Outcome[Rsp]) {
	switch {
	case p.trip != nil:
		b.decideProbe(p, c, out)
	case c != Ignorable:
		if reason := b.count(p, c); reason != "" {
			b.open(p, &breakerTrip{reason: reason}, out)
		}
	}
}

// count adds an outcome of class c to the counts of the period p. If the breaker must open now,
// count returns the reason. Otherwise it returns "".
func (b *breaker[Req, Rsp]) count(p *breakerPeriod, c Class) string {
	row := int64(0)
	switch c {
	case Success:
		if p.failures.Load() != 0 {
			p.failures.Store(0)
		}
	case Throttled: // the service works
	default:
		row = p.failures.Add(1)
	}
	if b.policy.ConsecutiveFailures > 0 && row >= int64(b.policy.ConsecutiveFailures) {
		return fmt.Sprintf("%d consecutive failures", row)
	}
	if p.window == nil {
		return ""
	}
	now := time.Now()
	p.window.add(now, c == Success)
	if !p.window.bad.Load() {
		return ""
	}
	good, all := p.window.sum(now)
	if all < uint64(b.policy.MinRequests) || float64(good) >= b.policy.MinSuccessRate*float64(all) {
		return ""
	}
	return fmt.Sprintf("%d of %d requests succeeded in %v", good, all, b.policy.Window)
}

func (b *breaker[Req, Rsp]) decideProbe(p *breakerPeriod, c Class, out Outcome[Rsp]) {
	defer b.changed.Wake()
	defer p.probed.Store(false) // without effect in another period
	switch c {
	case Ignorable:
	case Success:
		if b.now.CompareAndSwap(p, b.closed()) {
			b.tripped.add(-1)
		}
	default:
		b.open(p, &breakerTrip{reason: p.trip.reason, probes: p.trip.probes + 1}, out)
	}
}

// open replaces the period p by an open period, and sets the time of the next probe. The
// argument t has the reason and the number of failed probes. The argument out is the
// failure that opens the breaker or failed the probe. If another period has replaced p,
// open does nothing.
func (b *breaker[Req, Rsp]) open(p *breakerPeriod, t *breakerTrip, out Outcome[Rsp]) {
	wait := max(b.policy.Backoff.Delay(t.probes), min(b.requestedWait(out), b.policy.Backoff.Max))
	t.probe = time.Now().Add(wait)
	if !b.now.CompareAndSwap(p, &breakerPeriod{trip: t}) {
		return // another failure was faster
	}
	defer b.changed.Wake()
	if p.trip == nil {
		defer b.tripped.add(1)
		b.trips.inc()
	}
}

// requestedWait returns the time that the failed response asks the breaker to wait, or 0.
// It returns 0 if out has no such time, or if RetryAfter of the policy is false.
func (b *breaker[Req, Rsp]) requestedWait(out Outcome[Rsp]) time.Duration {
	if !b.policy.RetryAfter {
		return 0
	}
	if r, ok := b.replayer.(Replayer[Req, Rsp]); ok {
		if after, ok := r.RetryAfter(out.Response, out.Err); ok {
			return after
		}
	}
	after, _ := RetryAfter(out.Err)
	return after
}

// breakerRatio returns good / all, rounded to thousandths. It returns 1 if all is 0.
func breakerRatio(good, all uint64) float64 {
	if all == 0 {
		return 1
	}
	return math.Round(float64(good)/float64(all)*1000) / 1000
}

// watch registers an observer, which classifies rsp when it ends and counts the outcome in
// the period p. watch returns the response to pass on.
func (b *breaker[Req, Rsp]) watch(ctx context.Context, rsp Rsp, p *breakerPeriod) Rsp {
	a := b.observer()
	a.ctx, a.rsp, a.period = ctx, rsp, p
	rsp = b.complete(ctx, rsp, a)
	if a.state.Load() == breakerSettled {
		a.ctx, a.rsp, a.period = nil, *new(Rsp), nil
		b.spare.Store(a)
	}
	return rsp
}

// observer returns an observer for one response. It reuses the observer in b.spare, which an
// earlier response no longer needs. If b.spare is empty, it allocates an observer.
func (b *breaker[Req, Rsp]) observer() *breakerObserver[Req, Rsp] {
	if b.spare.Load() != nil {
		if a := b.spare.Swap(nil); a != nil {
			a.state.Store(breakerPending)
			return a
		}
	}
	return &breakerObserver[Req, Rsp]{breaker: b}
}

// breakerObserver is the [Observer] of one response. It counts the outcome when the response
// ends.
type breakerObserver[Req, Rsp any] struct {
	breaker *breaker[Req, Rsp]
	period  *breakerPeriod
	ctx     context.Context //nolint:containedctx // the request's; distinguishes a canceled caller from a failed service
	rsp     Rsp
	state   atomic.Int32
}

const (
	breakerPending  = iota
	breakerSettling // the outcome is being counted
	breakerSettled  // the outcome was counted; the observer may be used for another response
)

func (a *breakerObserver[Req, Rsp]) Data(int) {}

func (a *breakerObserver[Req, Rsp]) End(err error) {
	class, out := Ignorable, Outcome[Rsp]{Response: a.rsp, Err: err, Ended: err == nil}
	// A panic of the classifier must not keep the probe.
	defer func() { a.settle(class, out) }()
	class = a.breaker.classOf(a.ctx, out)
}

func (a *breakerObserver[Req, Rsp]) settle(c Class, out Outcome[Rsp]) {
	if a.state.CompareAndSwap(breakerPending, breakerSettling) {
		defer a.state.Store(breakerSettled)
		a.breaker.decide(a.period, c, out)
	}
}
