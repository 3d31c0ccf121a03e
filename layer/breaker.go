package layer

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/wake"
)

// Breaker takes a service that fails out of use, and tries it again with one
// request at a time, ever more rarely. It is the failure accrual of linkerd,
// as readiness: put one above each endpoint, and a balancer goes elsewhere.
//
// A balancer ignores the breakers that would bring its ready endpoints below a
// floor, by default half of all: see balance.OutlierDetection. So breakers do not reject
// all requests where all endpoints fail now and then. The breaker of a single
// endpoint is not ignored.
//
// Admission: while it is closed, everything passes. So does a request with
// [PastBreakers], which counts only if it is the probe. It trips on a number of
// failures in a row, or on a low share of successes (see [BreakerPolicy]);
// then it refuses. After a wait exactly one request is let through, the probe.
// Its success closes the breaker and forgets what was counted; its failure
// begins a longer wait. Ready waits until a probe may be sent, and while one is
// out, for what comes of it; then for inner. There is no timer and no
// goroutine: whoever comes first after the wait is the probe.
//
// Cancellation: a request whose context is done is refused. What is
// [Ignorable] (the caller left, inner refused, a fault was injected), and a
// panic or Goexit of inner, counts neither for nor against the service. A
// probe that ends like that gives its place to the next request at once.
//
// Body: a request is judged once. A head that is a failure already counts when
// it comes, because what follows cannot mend it; any other response is judged
// at its end, trailers included (see [WithCompletion]). So the probe is out until its
// response ended. Who probes with responses that never end says
// Until(AtReturn). What belongs to requests from before the breaker changed is
// ignored.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady]. It says what tripped
// the breaker, and when it will be probed, also as After.
//
// Cost: two atomic loads for a success, and one clock reading and one atomic
// write more if the share of successes is watched. No allocation for responses
// without a body, one for others. It holds no lock.
//
// A [Throttled] response lowers the share of successes; it neither counts in
// nor breaks a row of failures. A probe fails by it. Fields of the policy that
// are out of range are moved to its end; with neither rule on, the layer does
// nothing.
func Breaker[Req, Rsp any](p BreakerPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	p = p.orDefault()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if p.ConsecutiveFailures < 0 && p.MinSuccessRate == 0 {
			return next
		}
		b := &breaker[Req, Rsp]{
			Service: next,
			options: o,
			policy:  p,
			trips:   tally{to: o.to.BreakerOpened},
			refused: tally{to: o.to.LayerRejections.With("layer", "breaker")},
			tripped: &breakerGauge{to: o.to.BreakerOpen},
		}
		runtime.AddCleanup(b, (*breakerGauge).forget, b.tripped)
		b.now.Store(b.closed())
		o.to.BreakerOpened.Add(0)
		o.to.BreakerOpen.Add(0)
		return b
	}
}

type breaker[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	policy  BreakerPolicy
	now     atomic.Pointer[breakerPeriod]
	changed wake.Broadcast
	trips   tally
	refused tally
	tripped *breakerGauge

	// spare is used by the next response that may have a body: those that
	// turn out to have none give it back.
	spare atomic.Pointer[breakerAnswer[Req, Rsp]]
}

// breakerGauge is the part that a breaker has in the gauge Tripped. Nobody says
// when a breaker is no longer used: its endpoint is just not there any more. So
// what it has added is taken back when it is collected.
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

// wait waits for a closed breaker, or the moment for a probe.
func (b *breaker[Req, Rsp]) wait(ctx context.Context) error {
	for {
		p := b.now.Load()
		switch {
		case p.admits():
			return nil
		case ctx.Err() != nil:
			return b.refuse(p, context.Cause(ctx))
		}
		until, stop := p.untilProbe(ctx)
		// What it returns is looked at above: capacity goes before ctx.
		_ = b.changed.Wait(until, func() bool { return b.now.Load() != p || p.admits() })
		stop()
	}
}

func (b *breaker[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "breaker", b.target)
	}
	p := b.now.Load()
	if p.trip != nil {
		if p, err = b.probe(p); err != nil {
			if PickInfoFromContext(ctx).PastBreakers {
				return b.Service.Call(ctx, req)
			}
			b.refused.inc()
			return rsp, err
		}
	}
	judged := false
	defer func() {
		if !judged { // a panic, or Goexit
			defer b.decide(p, Ignorable, Outcome[Rsp]{})
			b.drop(rsp, err)
		}
	}()
	rsp, err = b.Service.Call(ctx, req)
	out := Outcome[Rsp]{Response: rsp, Err: err, Ended: b.bare && err == nil}
	class := b.judge(ctx, out)
	switch {
	case err == nil && !b.bare && !class.IsFailure():
		rsp = b.watch(ctx, rsp, p)
	case class == Success && p.clean():
	default:
		b.decide(p, class, out)
	}
	judged = true
	return rsp, err
}

func (b *breaker[Req, Rsp]) Next() Service[Req, Rsp] { return b.Service }

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
	state = append(state, Attr{"trips", b.trips.n.Load()}, Attr{"refused", b.refused.n.Load()})
	if b.policy.ConsecutiveFailures > 0 {
		state = append(state, Attr{"max_failures", b.policy.ConsecutiveFailures})
	}
	if b.policy.MinSuccessRate > 0 {
		state = append(state,
			Attr{"min_ratio", b.policy.MinSuccessRate}, Attr{"min_requests", b.policy.MinRequests}, Attr{"window", b.policy.Window})
	}
	return Node{Name: "breaker", State: state}
}
