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

	// Backoff is how long the breaker waits before it sends a probe. The time grows with each
	// failed probe. By default it is 1 s to 60 s with a jitter of 0.5. If only one of Min and Max
	// is 0, that field uses its default.
	Backoff Backoff

	// If RetryAfter is true, the wait before a probe is at least the time that the last
	// failed response requests. The wait is never longer than Backoff.Max. See [Protocol]
	// for how a response requests a wait. linkerd's failure accrual does not extend the
	// wait.
	RetryAfter bool
}

// UnifiedBreaker returns the policy that linkerd calls unified. The breaker opens after seven consecutive
// failures. It also opens if fewer than 80 % of the requests in the last 10 s succeeded, and at least 5
// were sent.
//
// You should use it for each of several endpoints below a balancer, which ignores breakers if most of
// them are open. In front of a single endpoint, or of a whole service, it turns partial failures into an
// outage: if 25 % of the requests fail, only about 14 % succeed, because the breaker is open most of the
// time. There you should use the zero BreakerPolicy. A layer with this policy warns about it, see
// [WithLogger].
func UnifiedBreaker() BreakerPolicy { return BreakerPolicy{MinSuccessRate: 0.8}.filled() }

// The limits of a BreakerPolicy's Window and MinRequests.
const (
	breakerMinWindow   = 10 * time.Millisecond
	breakerMaxRequests = 1_000_000
)

// Validate returns an error that names the first field that is out of range, or nil.
func (p BreakerPolicy) Validate() error {
	switch {
	// Written so that NaN is out of range too.
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
	// Jitter has a default only if nothing in Backoff is set, since 0 may be meant.
	if p.Backoff == (Backoff{}) {
		p.Backoff.Jitter = 0.5
	}
	p.Backoff.Max = cmp.Or(p.Backoff.Max, max(time.Minute, p.Backoff.Min))
	p.Backoff.Min = cmp.Or(p.Backoff.Min, min(time.Second, p.Backoff.Max))
	return p
}

// Breaker stops sending requests to a failing service, and probes it with one request at a time at
// growing intervals. It counts failures like linkerd's failure accrual. While it is open, it is not
// ready, so that a balancer above uses other endpoints.
//
// Admission: a closed breaker admits every request. An open one rejects requests until its wait is
// over, and then admits one as a probe. If the headers of its response are a success, the breaker
// closes. If the probe fails, also later in its body, a longer wait starts. If a probe has no response
// for Backoff.Min, at least 1 s, the next request is a probe too. Requests with [PastBreakers] are
// always admitted, and their success closes the breaker. Ready waits until a probe may be sent or the
// breaker is closed, and then for inner.
//
// Cancellation: an ended context rejects the request. [Ignorable] outcomes and panics do not count.
//
// Body: a failure in the headers counts when they arrive. Any other response counts when it ends,
// trailers included (see [WithCompletion]).
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. Its RetryAfter is the time to the next probe.
// A [Throttled] response lowers the success rate and fails a probe, but is no consecutive failure.
//
// Cost: two atomic loads for a success, an allocation for a body, and a lock for MinSuccessRate.
func Breaker[Req, Rsp any](p BreakerPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	o.warnOfRate(p)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		// Both conditions are disabled, so the breaker would never open.
		if p.ConsecutiveFailures < 0 && p.MinSuccessRate == 0 {
			return next
		}
		b := &breaker[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			policy:   p,
			trips:    tally{counter: o.instruments.BreakerOpened},
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "breaker")},
			tripped:  &breakerGauge{gauge: o.instruments.BreakerOpen},
		}
		// A breaker that is freed while it is open must not count in the gauge any longer.
		runtime.AddCleanup(b, (*breakerGauge).forget, b.tripped)
		b.now.Store(b.closed())
		// Adding 0 makes the series exist before the first event.
		o.instruments.BreakerOpened.Add(0)
		o.instruments.BreakerOpen.Add(0)
		return b
	}
}

// Breaker adds a [Breaker] layer, which stops sending requests to a failing service.
func (s Stack[Req, Rsp]) Breaker(p BreakerPolicy) Stack[Req, Rsp] {
	return s.With("breaker", Breaker[Req](p, s.opts...))
}

// breaker is the service of [Breaker]. Its state is the period in now, which is replaced at each
// change.
type breaker[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   BreakerPolicy
	now      atomic.Pointer[breakerPeriod] // the current state; replaced by compare-and-swap
	changed  notify.Broadcast              // wakes callers that wait in Ready after a change of state
	trips    tally                         // how often the breaker opened; only grows
	rejected tally                         // requests that were rejected while it was open
	tripped  *breakerGauge                 // adds 1 to the gauge of open breakers while this one is open

	// spare is an Observer for the next response, or nil. When a response ends at once because it
	// carries no body, its Observer is kept here, which saves an allocation.
	spare atomic.Pointer[breakerObserver[Req, Rsp]]
}

// breakerGauge remembers what one breaker has added to the gauge BreakerOpen: 1 while it is open or
// probing, else 0. A breaker has no Close, so a cleanup subtracts this when the garbage collector frees
// it.
type breakerGauge struct {
	gauge metrics.Gauge
	n     atomic.Int64
}

// add adds n to the gauge, and remembers it.
func (g *breakerGauge) add(n int64) {
	g.n.Add(n)
	g.gauge.Add(float64(n))
}

// forget subtracts from the gauge what the breaker has added to it.
func (g *breakerGauge) forget() {
	if n := g.n.Load(); n != 0 {
		_ = panics.Contain(func() { g.gauge.Add(float64(-n)) })
	}
}

// Ready waits until the breaker is closed or may be probed, and the service below is ready.
func (b *breaker[Req, Rsp]) Ready(ctx context.Context) error {
	// The breaker may open again while inner becomes ready, so both are checked until they agree.
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
		waitCtx, stop := p.untilProbe(ctx)
		// The loop checks again, because an available probe precedes the end of ctx.
		_ = b.changed.Wait(waitCtx, func() bool { return b.now.Load() != p || p.admits() })
		stop()
	}
}

// Call sends req if the breaker is closed, or as its probe. Otherwise it rejects the request. The
// outcome may open or close the breaker.
func (b *breaker[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "breaker", b.target)
	}
	// p stays the period of this request, even if the breaker changes its state before the response.
	p := b.now.Load()
	// The breaker is open. Only the request that becomes the probe, or one with PastBreakers, is sent.
	if p.trip != nil {
		open := p
		if p, err = b.probe(p); err != nil {
			if PickInfoFromContext(ctx).PastBreakers {
				return b.callPast(ctx, req, open)
			}
			b.rejected.inc()
			return rsp, err
		}
	}
	// A panic counts as Ignorable, which lets the next request be a probe if this one was.
	classified := false
	defer func() {
		if !classified { // a panic, or Goexit
			defer b.decide(p, Ignorable, Outcome[Rsp]{})
			b.drop(rsp, err)
		}
	}()
	rsp, err = b.Service.Call(ctx, req)
	// A response without a body (b.bare) is complete when Call returns.
	out := Outcome[Rsp]{Response: rsp, Err: err, Ended: b.bare && err == nil}
	class := b.classOf(ctx, out)
	switch {
	case err == nil && !b.bare && !class.IsFailure():
		// The headers are no failure, but the body may still fail. The observer counts the outcome at
		// the end.
		// A probe closes the breaker as soon as its headers are a success. watch remembers the trip, so that
		// a failure of the body can open the breaker again.
		trip := p.trip
		if trip != nil && class == Success {
			p = b.closeAfter(p)
		}
		rsp = b.watch(ctx, rsp, p, trip)
	case class == Success && p.clean(): // the usual case: nothing to count
	default:
		b.decide(p, class, out)
	}
	classified = true
	return rsp, err
}

// callPast sends a request with [PastBreakers] although the breaker is open. Its success closes the
// breaker, as that of a probe does. Its failure changes nothing.
func (b *breaker[Req, Rsp]) callPast(ctx context.Context, req Req, open *breakerPeriod) (rsp Rsp, err error) {
	returned := false // for dropUnless: the caller gets rsp
	defer b.dropUnless(&returned, &rsp, &err, nil)
	rsp, err = b.Service.Call(ctx, req)
	// The request was sent although the breaker is open. Its success shows that the service works again.
	if b.classOf(ctx, Outcome[Rsp]{Response: rsp, Err: err, Ended: b.bare && err == nil}) == Success {
		b.closeAfter(open)
	}
	returned = true
	return rsp, err
}

// Describe returns the state, the reason for it, and the counts that decide.
func (b *breaker[Req, Rsp]) Describe() Node {
	p := b.now.Load()
	now := time.Now()
	state := State{{"state", p.String()}}
	// Open or half open: only the reason and the next probe matter.
	if p.trip != nil {
		state = append(state,
			Attr{"reason", p.trip.reason},
			Attr{"failed_probes", p.trip.probes},
			Attr{"next_probe", max(p.trip.probe.Sub(now), 0).Round(time.Millisecond)})
	} else {
		state = append(state, Attr{"failures", p.failures.Load()})
		// The window exists only if the policy has a MinSuccessRate.
		if p.window != nil {
			good, total := p.window.sum(now)
			state = append(state, Attr{"ratio", breakerRatio(good, total)}, Attr{"requests", total})
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

// decide counts an outcome of class c, and opens or closes the breaker if necessary. p is the period
// that has admitted the request; for a probe whose headers were a success, it is the closed period that
// they have started. decide is called at most once per request.
func (b *breaker[Req, Rsp]) decide(p *breakerPeriod, c Class, out Outcome[Rsp]) {
	switch {
	// While the breaker is not closed, only the probe decides.
	case p.trip != nil:
		b.decideProbe(p, c, out)
	// The breaker is closed. Ignorable outcomes are left out, because they say nothing about the service.
	case c != Ignorable:
		if reason := b.count(p, c); reason != "" {
			b.open(p, &breakerTrip{reason: reason}, out)
		}
	}
}

// count adds an outcome of class c to the counts of the closed period p. If the breaker must open now,
// it returns the reason, and otherwise "".
func (b *breaker[Req, Rsp]) count(p *breakerPeriod, c Class) string {
	// The number of consecutive failures. It stays 0 unless this outcome is a failure.
	row := int64(0)
	switch c {
	case Success:
		// Storing 0 only if necessary keeps concurrent requests from writing the same cache line.
		if p.failures.Load() != 0 {
			p.failures.Store(0)
		}
	// The service works, but is overloaded: no failure, and no success that would end a row of failures.
	case Throttled:
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
	// Without a failure the success rate is 1, so there is nothing to compute.
	if !p.window.bad.Load() {
		return ""
	}
	good, total := p.window.sum(now)
	if total < uint64(b.policy.MinRequests) || float64(good) >= b.policy.MinSuccessRate*float64(total) {
		return ""
	}
	return fmt.Sprintf("%d of %d requests succeeded in %v", good, total, b.policy.Window)
}

// decideProbe handles the outcome of a probe: a success closes the breaker, a failure starts a longer
// wait, and anything else lets the next request be a probe.
func (b *breaker[Req, Rsp]) decideProbe(p *breakerPeriod, c Class, out Outcome[Rsp]) {
	// Both are deferred, so that they also run if a metric panics. The probe's place is released first,
	// because waiting callers check it when they wake.
	defer b.changed.Wake()
	defer p.probeUntil.Store(0) // without effect in another period
	switch c {
	case Ignorable:
	case Success:
		b.closeAfter(p)
	default:
		b.open(p, p.trip.nextTrip(), out)
	}
}

// closeAfter closes the breaker after a success in the open period p, and returns the new period. If
// another goroutine has ended p already, closeAfter does nothing and returns p.
func (b *breaker[Req, Rsp]) closeAfter(p *breakerPeriod) *breakerPeriod {
	closed := b.closed()
	if !b.now.CompareAndSwap(p, closed) {
		return p
	}
	defer b.changed.Wake()
	b.tripped.add(-1)
	return closed
}

// open opens the breaker, or keeps it open after a failed probe, and sets the time of the next probe. p
// is the period in which that happened; if another goroutine has ended it already, open does nothing. t
// holds the reason and the number of failed probes. out is the failure, which may ask for a longer
// wait.
func (b *breaker[Req, Rsp]) open(p *breakerPeriod, t *breakerTrip, out Outcome[Rsp]) {
	// The first probe comes after Backoff.Min, and later ones after growing waits, unless the service asks for more.
	wait := max(b.policy.Backoff.Delay(t.probes), min(b.requestedWait(out), b.policy.Backoff.Max))
	t.probe = time.Now().Add(wait)
	if !b.now.CompareAndSwap(p, &breakerPeriod{trip: t}) {
		return // another failure was faster
	}
	defer b.changed.Wake()
	// The breaker was closed before, so there is one more open breaker (tripped) and one more opening
	// (trips). After a failed probe, both have been counted already.
	if p.trip == nil {
		defer b.tripped.add(1)
		b.trips.inc()
	}
}

// requestedWait returns how long the failed response asks the breaker to wait. It returns 0 if
// the response does not ask, or if the policy's RetryAfter is false.
func (b *breaker[Req, Rsp]) requestedWait(out Outcome[Rsp]) time.Duration {
	// The policy decides whether a server may prolong the wait.
	if !b.policy.RetryAfter {
		return 0
	}
	if b.responses != nil {
		// First the protocol's own header, and then the error of a layer below.
		if retryAfter, ok := b.responses.RetryAfter(out.Response, out.Err); ok {
			return retryAfter
		}
	}
	retryAfter, _ := RetryAfter(out.Err)
	return retryAfter
}

// breakerRatio returns good / total, rounded to thousandths, or 1 if total is 0.
func breakerRatio(good, total uint64) float64 {
	if total == 0 {
		return 1
	}
	return math.Round(float64(good)/float64(total)*1000) / 1000
}

// watch returns the response to pass on instead of rsp. When it ends, its outcome is counted in the
// period p. trip is nil unless rsp is the response to a probe.
func (b *breaker[Req, Rsp]) watch(ctx context.Context, rsp Rsp, p *breakerPeriod, trip *breakerTrip) Rsp {
	a := b.observer()
	a.ctx, a.rsp, a.period, a.trip = ctx, rsp, p, trip
	rsp = b.complete(ctx, rsp, a)
	// The response has ended already, because it has no body. Clear the observer, so that it keeps nothing in memory,
	// and use it again.
	if a.state.Load() == breakerSettled {
		a.ctx, a.rsp, a.period, a.trip = nil, *new(Rsp), nil, nil
		b.spare.Store(a)
	}
	return rsp
}

// observer returns an observer for one response: the one in b.spare, which an earlier response no
// longer needs, or a new one.
func (b *breaker[Req, Rsp]) observer() *breakerObserver[Req, Rsp] {
	// Most calls find no spare observer, and a Load is cheaper than a Swap.
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
	trip    *breakerTrip    // for a probe
	ctx     context.Context //nolint:containedctx // the request's; distinguishes a canceled caller from a failed service
	rsp     Rsp
	state   atomic.Int32
}

// The states of a breakerObserver, which makes sure that an outcome is counted once.
const (
	breakerPending  = iota
	breakerSettling // the outcome is being counted
	breakerSettled  // the outcome was counted; the observer may be used for another response
)

// Data implements [Observer] and does nothing.
func (a *breakerObserver[Req, Rsp]) Data(int) {}

// End implements [Observer]. It classifies the outcome, now that the response has ended with err.
func (a *breakerObserver[Req, Rsp]) End(err error) {
	// As long as the classifier has not returned, the outcome counts as Ignorable.
	class := Ignorable
	out := Outcome[Rsp]{Response: a.rsp, Err: err, Ended: err == nil}
	// A panic of the classifier must not keep the probe.
	defer func() { a.settle(class, out) }()
	class = a.breaker.classOf(a.ctx, out)
}

// settle counts the outcome c of a response that has ended. A probe closes the breaker when its headers
// arrive; if it fails later, the breaker opens again, with the next longer wait.
func (a *breakerObserver[Req, Rsp]) settle(c Class, out Outcome[Rsp]) {
	// Only the first end of a response counts.
	if a.state.CompareAndSwap(breakerPending, breakerSettling) {
		defer a.state.Store(breakerSettled)
		// The probe had already closed the breaker with its headers, and then failed in its body.
		if a.trip != nil && a.period.trip == nil && c != Success && c != Ignorable {
			a.breaker.open(a.period, a.trip.nextTrip(), out) // the probe has failed after its headers
			return
		}
		a.breaker.decide(a.period, c, out)
	}
}
