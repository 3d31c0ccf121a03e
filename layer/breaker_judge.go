package layer

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// decide lets one outcome count in the period that let the request in. It is
// called once for each.
func (b *breaker[Req, Rsp]) decide(p *breakerPeriod, c Class, out Outcome[Rsp]) {
	switch {
	case p.trip != nil:
		b.decideProbe(p, c, out)
	case c != Ignorable:
		if reason := b.count(p, c); reason != "" {
			b.shut(p, &breakerTrip{reason: reason}, out)
		}
	}
}

// count returns why the breaker has to trip, or "".
func (b *breaker[Req, Rsp]) count(p *breakerPeriod, c Class) string {
	row := int64(0)
	switch c {
	case Success:
		if p.failures.Load() != 0 {
			p.failures.Store(0)
		}
	case Throttled: // the service is well
	default:
		row = p.failures.Add(1)
	}
	if b.policy.ConsecutiveFailures > 0 && row >= int64(b.policy.ConsecutiveFailures) {
		return fmt.Sprintf("%d failures in a row", row)
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
	defer p.giveBack() // of no effect once another period has begun
	switch c {
	case Ignorable:
	case Success:
		if b.now.CompareAndSwap(p, b.closed()) {
			b.tripped.add(-1)
		}
	default:
		b.shut(p, &breakerTrip{reason: p.trip.reason, probes: p.trip.probes + 1}, out)
	}
}

// shut ends p, in which out came, with a wait for the next probe.
func (b *breaker[Req, Rsp]) shut(p *breakerPeriod, t *breakerTrip, out Outcome[Rsp]) {
	wait := max(b.policy.Backoff.Delay(t.probes), min(b.asked(out), b.policy.Backoff.Max))
	t.probe = time.Now().Add(wait)
	if !b.now.CompareAndSwap(p, &breakerPeriod{gatePeriod: gatePeriod{mode: gateShut}, trip: t}) {
		return // another failure was faster
	}
	defer b.changed.Wake()
	if p.trip == nil {
		defer b.tripped.add(1)
		b.trips.inc()
	}
}

// asked returns how long the service asks to be left alone.
func (b *breaker[Req, Rsp]) asked(out Outcome[Rsp]) time.Duration {
	if !b.policy.RetryAfter {
		return 0
	}
	if r, ok := b.resend.(Replayer[Req, Rsp]); ok {
		if after, ok := r.RetryAfter(out.Response, out.Err); ok {
			return after
		}
	}
	after, _ := RetryAfter(out.Err)
	return after
}

// breakerRatio is for people: 1 as long as there was nothing, in thousandths.
func breakerRatio(good, all uint64) float64 {
	if all == 0 {
		return 1
	}
	return math.Round(float64(good)/float64(all)*1000) / 1000
}

// watch judges rsp when it ends.
func (b *breaker[Req, Rsp]) watch(ctx context.Context, rsp Rsp, p *breakerPeriod) Rsp {
	a := b.answer()
	a.ctx, a.rsp, a.period = ctx, rsp, p
	rsp = b.complete(ctx, rsp, a)
	if a.state.Load() == breakerSettled {
		a.ctx, a.rsp, a.period = nil, *new(Rsp), nil
		b.spare.Store(a)
	}
	return rsp
}

// answer returns an observer that is not in use.
func (b *breaker[Req, Rsp]) answer() *breakerAnswer[Req, Rsp] {
	if b.spare.Load() != nil {
		if a := b.spare.Swap(nil); a != nil {
			a.state.Store(breakerPending)
			return a
		}
	}
	return &breakerAnswer[Req, Rsp]{breaker: b}
}

// breakerAnswer is the Observer of one response.
type breakerAnswer[Req, Rsp any] struct {
	breaker *breaker[Req, Rsp]
	period  *breakerPeriod
	ctx     context.Context //nolint:containedctx // the request's: it tells a caller who left from inner that failed
	rsp     Rsp
	state   atomic.Int32
}

const (
	breakerPending  = iota
	breakerSettling // by whoever came first
	breakerSettled  // nobody looks at it any more
)

func (a *breakerAnswer[Req, Rsp]) Data(int) {}

func (a *breakerAnswer[Req, Rsp]) End(err error) {
	class, out := Ignorable, Outcome[Rsp]{Response: a.rsp, Err: err, Ended: err == nil}
	// A classifier that panics must not keep the probe's place for ever.
	defer func() { a.settle(class, out) }()
	class = a.breaker.judge(a.ctx, out)
}

func (a *breakerAnswer[Req, Rsp]) settle(c Class, out Outcome[Rsp]) {
	if a.state.CompareAndSwap(breakerPending, breakerSettling) {
		defer a.state.Store(breakerSettled)
		a.breaker.decide(a.period, c, out)
	}
}
