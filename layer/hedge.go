package layer

import (
	"context"
	"errors"
	"math"
	"time"
)

// Hedge sends a request a second time, to another endpoint, when it takes
// longer than most do, and returns the answer that comes first.
//
// The delay is a quantile of the latencies of the last half a minute to a
// minute, up to the head of a response: long enough for a slow service to have
// samples, short enough to follow a deployment. There is one copy at the most.
// At the default quantile one request in twenty has one; that both are slow by
// bad luck is one in four hundred, and if they are slow because the service is,
// more copies make it slower.
//
// Admission: none of its own; Ready is forwarded. A copy that is refused is
// dropped, and is not waited for. Put the layer below a [Queue]: a copy must not
// stand in line.
//
// Cancellation: the caller's ends both. The one that lost is cancelled, and its
// response discarded if it comes still.
//
// Body: that of a request is kept while it is read, see [HedgePolicy]. The
// context of the answer lives until the response ended, see [WithCompletion].
//
// Errors: an answer that failed, by its [Class], does not win while the other
// is out. If both fail, a response is returned rather than an error, that
// rather than a refusal, and of two alike the first request's. A panic of
// the first request reaches the caller; one of the copy is a failure, by a
// [PanicError].
//
// Cost: a timer and one allocation for itself; no goroutine unless a copy is
// sent. The first request runs in the caller's goroutine. When the copy wins,
// the first is cancelled and Call returns once that has: at once if inner obeys
// its context, as a [Service] must, and no later than without a hedge if not.
// Requests that are not hedged, because of what they are, cost nothing; while
// there are too few samples, a clock reading.
//
// Each request pays in to the budget, unless a [Retry] above does so. A sample
// is what the first request took: of one that lost to its copy, how long it had
// taken by then, so that the quantile does not sink with what it cuts off.
// Failures count for nothing. What the policy says beyond its ranges is held to
// them; see Validate.
func Hedge[Req, Rsp any](p HedgePolicy[Req], opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	p = p.orDefault()
	resend := resendOf[Req](o)
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
	if err != nil && errors.Is(err, ErrNotReady) || retryAbove(ctx).paysTo(h.policy.Budget) {
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
