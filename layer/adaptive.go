package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/wake"
)

// AdaptiveLimit is a [Limit] that finds its size by itself: as many requests in
// flight as keep inner busy without a long queue in it.
//
// Time is cut into windows: at least Window long, and of as many responses as
// were in flight (20 at the least), so that each shows the effect of the one
// before. latency is the geometric mean, over the successful responses whose
// request began in the window, of the time to their head; dropped is the share
// of requests that inner did not cope with. At the end of each the limit L is
//
//	gradient = min(1, Tolerance · base / latency)
//	L        = L · max(1/2, gradient · (1 - dropped)) + min(√L, L/4)
//
// within Min and Max. It stays as it is while no more than half of it is used,
// but for dropped, and does not grow while more than 1 % are dropped. base is
// the latency without a queue. This is Gradient2 of Netflix's
// concurrency-limits (the tolerance, the bound of 1/2), with the headroom √L
// of Envoy's adaptive concurrency filter, less where L is below 16 and √L would
// be a large part of it. The mean is geometric because the gradient is a ratio,
// and because one answer that takes ten times as long then moves a window of
// fifty by 5 % and not by 18 %.
//
// Gradient2 averages base over time, and in a lasting overload that average
// becomes the latency of the queue. Envoy measures it with next to no traffic.
// Here, every 50 windows, when the limit is first used, and when it has fallen
// to 0.6 of its height, one short window is a probe: the limit is
// (L - min(√L, L/4)) / 2. L less its headroom is Tolerance times what inner can
// do at once, so half of it meets no queue, yet keeps inner three quarters
// busy. Where the latency then falls just as the limit did, it is still that
// of a queue: the next probe is half as large, and L at most twice this one.
//
// The file testdata/adaptive.txt has the figures of a simulation: goodput is
// above 90 % of the capacity and the p99 within five times that of an idle
// server, at twice and five times the load that it can serve, after half of it
// is gone or back, and on slow ramps.
//
// Admission: exact under any number of callers. While a limit that has shrunk
// is exceeded nobody is admitted. Ready waits for a free slot, then for inner.
//
// Cancellation: a request whose context is done is refused; one in flight
// keeps its slot until it ended, and says nothing of inner's latency.
//
// Body: a slot is held until the response ended, see [WithCompletion]; the latency is
// that to its head. What becomes of the body says nothing. Where many bodies
// are open for long, such as event streams, end the slots at the head with
// [AtReturn]: a probe that waits for them is given up after some latencies.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady]. What the [Classifier]
// takes for [Throttled], and an error that matches
// [context.DeadlineExceeded] (unless the caller cancelled), count as dropped;
// any other failure, and whatever is [Ignorable], says nothing.
//
// Cost: two clock readings, a logarithm and a few atomic operations, no
// allocation. Only the response that ends a window, a few times a second, does
// more; a probe sets a timer. A refusal costs no allocation.
//
// A policy that is not valid is made so: what is out of range is moved to the
// end of the range that is nearest. See [AdaptivePolicy.Validate].
func AdaptiveLimit[Req, Rsp any](p AdaptivePolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	p = p.orDefault()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		l := &adaptiveLimit[Req, Rsp]{
			Service: next,
			options: o,
			gate:    newAdaptiveGate(p),
			born:    time.Now(),
			refused: tally{to: o.to.LayerRejections.With("layer", "adaptive")},
		}
		l.changed()
		return l
	}
}

type adaptiveLimit[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	gate    *adaptiveGate
	born    time.Time
	freed   wake.Broadcast
	full    atomic.Pointer[Error] // shared by every refusal at one limit
	refused tally
}

func (l *adaptiveLimit[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := l.freed.Wait(ctx, l.gate.hasRoom); err != nil {
			return err
		}
		if err := l.Service.Ready(ctx); err != nil {
			return err
		}
		if l.gate.hasRoom() {
			return nil
		}
	}
}

func (l *adaptiveLimit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "adaptive", l.target)
	}
	if !l.gate.take() {
		l.refused.inc()
		return rsp, l.full.Load()
	}
	handed := false
	defer func() {
		if !handed {
			defer l.End(nil)
			l.drop(rsp, err)
		}
	}()
	began := time.Since(l.born)
	rsp, err = l.Service.Call(ctx, req)
	l.learn(ctx, began, Outcome[Rsp]{Response: rsp, Err: err})
	if err != nil {
		return rsp, err
	}
	rsp = l.complete(ctx, rsp, l)
	handed = true
	return rsp, nil
}

// learn takes what the head of a response tells of inner's load.
func (l *adaptiveLimit[Req, Rsp]) learn(ctx context.Context, began time.Duration, out Outcome[Rsp]) {
	var ended bool
	switch class := l.judge(ctx, out); {
	case class == Success:
		ended = l.gate.sample(began, time.Since(l.born))
	case class == Throttled, class != Ignorable && errors.Is(out.Err, context.DeadlineExceeded):
		ended = l.gate.drop(time.Since(l.born))
	}
	if ended {
		l.changed()
		l.watchProbe()
	}
}

// watchProbe sees to it that a probe ends, even if nobody calls meanwhile.
func (l *adaptiveLimit[Req, Rsp]) watchProbe() {
	began, after := l.gate.probe()
	if after == 0 {
		return
	}
	var look func()
	look = func() {
		switch ended, again := l.gate.giveUp(began, time.Since(l.born)); {
		case ended:
			_ = panics.Contain(l.changed)
		case again:
			time.AfterFunc(after, look)
		}
	}
	time.AfterFunc(after, look)
}

// changed is called after the limit may have.
func (l *adaptiveLimit[Req, Rsp]) changed() {
	n := l.gate.limit.Load()
	l.full.Store(&Error{
		Layer: "adaptive", Target: l.target, Kind: errShed, Reason: fmt.Sprintf("%d of %[1]d in flight", n),
	})
	defer l.freed.Wake()
	l.to.Limit.Set(float64(n))
}

// Data and End make the limit the Observer of every response it admitted, so
// that none has to be made for each.
func (l *adaptiveLimit[Req, Rsp]) Data(int) {}

func (l *adaptiveLimit[Req, Rsp]) End(error) {
	l.gate.inFlight.Add(-1)
	l.freed.Wake()
}

func (l *adaptiveLimit[Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *adaptiveLimit[Req, Rsp]) Describe() Node {
	base, probing := l.gate.found()
	return Node{Name: "adaptive", State: State{
		{"in_flight", l.gate.inFlight.Load()}, {"limit", l.gate.limit.Load()},
		{"min", l.gate.control.policy.Min}, {"max", l.gate.control.policy.Max},
		{"latency", base}, {"probing", probing}, {"refused", l.refused.n.Load()},
	}}
}
