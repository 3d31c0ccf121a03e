package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
)

// AdaptivePolicy configures an [AdaptiveLimit]. Fields that are 0 use their defaults.
type AdaptivePolicy struct {
	Min     int // the lowest limit, 1 to Max; default 1
	Max     int // the highest limit, at least Min; default 1000, or Min if that is larger
	Initial int // the limit at the start, Min to Max; default 20, or the nearest value in that range

	// Tolerance is the ratio of the latency to the latency without a queue above which the limit
	// shrinks. Tolerance is 1.1 to 2; the default is 1.5. A higher value keeps a server with
	// varying latency busier, but allows a longer queue in the server. If the requests' latencies
	// differ, the ratio may be higher by one and a half of their standard deviations.
	Tolerance float64

	// Window is the shortest time between two changes of the limit: 1 ms to 1 min; default
	// 100 ms.
	Window time.Duration
}

// Validate returns an error that names the first invalid field, or nil.
func (p AdaptivePolicy) Validate() error {
	// The defaults are checked too, because one of them may contradict a field that is set.
	set := p.filled()
	switch {
	case set.Min < 1:
		return fmt.Errorf("AdaptivePolicy.Min is %d, must be at least 1", p.Min)
	case set.Max < set.Min:
		return fmt.Errorf("AdaptivePolicy.Max is %d, must be at least Min, %d", set.Max, set.Min)
	case set.Initial < set.Min || set.Initial > set.Max:
		return fmt.Errorf("AdaptivePolicy.Initial is %d, must be %d to %d", set.Initial, set.Min, set.Max)
	// Written so that NaN is out of range too.
	case !(set.Tolerance >= 1.1 && set.Tolerance <= 2):
		return fmt.Errorf("AdaptivePolicy.Tolerance is %v, must be 1.1 to 2", p.Tolerance)
	case set.Window < time.Millisecond || set.Window > time.Minute:
		return fmt.Errorf("AdaptivePolicy.Window is %v, must be 1ms to 1m", p.Window)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields. Initial and Tolerance default to
// the values of Netflix's Gradient2; Window, Min and Max to those of Envoy.
func (p AdaptivePolicy) filled() AdaptivePolicy {
	p.Min = cmp.Or(p.Min, 1)
	p.Max = cmp.Or(p.Max, max(1000, p.Min))
	p.Initial = cmp.Or(p.Initial, min(max(20, p.Min), p.Max))
	p.Tolerance = cmp.Or(p.Tolerance, 1.5)
	p.Window = cmp.Or(p.Window, 100*time.Millisecond)
	return p
}

// AdaptiveLimit is a [Limit] whose size follows inner's latency. The limit rises while the latency
// stays low, and falls when requests wait in inner. The formula is Gradient2 of Netflix's
// concurrency-limits, with the growth of Envoy's adaptive concurrency filter.
//
// Admission: a request is admitted while the number of requests in flight is below the limit. Ready
// waits for a free slot, then for inner.
//
// Cancellation: a request is rejected if its context has ended. A canceled request's slot stays
// taken until the request ends, and its latency does not count.
//
// Body: a request keeps its slot until the response ends, see [WithCompletion]. With [AtReturn], it
// keeps the slot until inner returns. The latency is the time to the response headers.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. Responses of class [Throttled] and
// timeouts (errors that match [context.DeadlineExceeded]) lower the limit, unless the caller
// canceled the request. Other failures do not change it.
//
// Cost: two clock readings, a logarithm and a few atomic operations; no allocation. AdaptiveLimit
// panics if the policy is invalid, see [AdaptivePolicy.Validate].
func AdaptiveLimit[Req, Rsp any](p AdaptivePolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		l := &adaptiveLimit[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			gate:     newAdaptiveGate(p),
			born:     time.Now(),
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "adaptive")},
		}
		l.changed() // sets the rejection and the gauge for the initial limit
		return l
	}
}

// AdaptiveLimit adds an [AdaptiveLimit] layer, which limits the requests in flight depending on the
// latency.
func (s Stack[Req, Rsp]) AdaptiveLimit(p AdaptivePolicy) Stack[Req, Rsp] {
	return s.With("adaptive", AdaptiveLimit[Req](p, s.opts...))
}

// adaptiveLimit is the service of [AdaptiveLimit].
type adaptiveLimit[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	gate     *adaptiveGate         // admits requests, and computes the limit from their latencies
	born     time.Time             // the origin of all durations that gate receives
	freed    notify.Broadcast      // wakes callers in Ready when a slot is free or the limit changes
	full     atomic.Pointer[Error] // the rejection for the current limit, shared by all rejected requests
	rejected tally
}

// Ready waits until fewer requests than the limit are in flight and the service is ready.
func (l *adaptiveLimit[Req, Rsp]) Ready(ctx context.Context) error {
	return awaitRoom(ctx, &l.freed, l.gate.hasRoom, l.Service)
}

// Call sends req if fewer requests than the limit are in flight, and learns from its latency. Otherwise
// it rejects the request.
func (l *adaptiveLimit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "adaptive", l.target)
	}
	if !l.gate.take() {
		l.rejected.inc()
		return rsp, l.full.Load()
	}
	returned := false // whether the caller gets rsp
	// If it does not, because of an error or a panic, dropUnless discards rsp and releases the slot by l.End.
	defer l.dropUnless(&returned, &rsp, &err, l)
	start := time.Since(l.born)
	rsp, err = l.Service.Call(ctx, req)
	// A response without a body (l.bare) has already ended.
	l.learn(ctx, start, Outcome[Rsp]{Response: rsp, Err: err, Ended: l.bare && err == nil})
	if err != nil {
		return rsp, err
	}
	// The slot is released by l.End, when the body of the response has ended.
	rsp = l.complete(ctx, rsp, l)
	returned = true
	return rsp, nil
}

// learn tells l.gate how a request that began at start ended, from which the gate computes the limit:
// with its latency if it succeeded, or that it overloaded inner (see [AdaptiveLimit]). Other outcomes
// say nothing about the limit. start is the time since l.born.
func (l *adaptiveLimit[Req, Rsp]) learn(ctx context.Context, start time.Duration, out Outcome[Rsp]) {
	var ended bool
	switch class := l.classOf(ctx, out); {
	case class == Success:
		ended = l.gate.sample(start, time.Since(l.born))
	case class == Throttled, class != Ignorable && errors.Is(out.Err, context.DeadlineExceeded):
		ended = l.gate.drop(time.Since(l.born))
	}
	// The window has ended with this request, so the limit may be a new one, and a probe may have begun.
	if ended {
		l.changed()
		l.watchProbe()
	}
}

// watchProbe starts a timer if a probe is running, which is a window with a lower limit that measures
// the latency without a queue. The timer ends the probe if no request has finished after four times the
// latency before it, because the lower limit must not last.
func (l *adaptiveLimit[Req, Rsp]) watchProbe() {
	start, delay := l.gate.probe()
	if delay == 0 {
		return
	}
	// check runs on the timer's goroutine. It starts the timer again as long as the probe makes progress.
	var check func()
	check = func() {
		switch ended, retry := l.gate.giveUp(start, time.Since(l.born)); {
		case ended:
			_ = panics.Contain(l.changed)
		case retry:
			time.AfterFunc(delay, check)
		}
	}
	time.AfterFunc(delay, check)
}

// changed must be called after each change of the limit. It prepares the error for later rejections,
// whose text names the limit, wakes callers that wait in Ready, and sets the gauge.
func (l *adaptiveLimit[Req, Rsp]) changed() {
	// Rejections share one prepared error, which saves an allocation for each.
	n := l.gate.limit.Load()
	l.full.Store(&Error{
		Layer: "adaptive", Target: l.target, Kind: errShed, Reason: fmt.Sprintf("%d of %[1]d in flight", n),
	})
	// Deferred, so that callers wake even if the gauge panics.
	defer l.freed.Wake()
	l.instruments.Limit.Set(float64(n))
}

// Data implements [Observer] and does nothing. The service itself is the Observer of every response,
// because a separate one would be an allocation.
func (l *adaptiveLimit[Req, Rsp]) Data(int) {}

// End implements [Observer]: a response has ended, so its slot is free.
func (l *adaptiveLimit[Req, Rsp]) End(error) {
	l.gate.inFlight.Add(-1)
	l.freed.Wake()
}

// Describe returns the current limit and what it was computed from.
func (l *adaptiveLimit[Req, Rsp]) Describe() Node {
	base, probing := l.gate.found()
	return Node{Name: "adaptive", State: State{
		{"in_flight", l.gate.inFlight.Load()}, {"limit", l.gate.limit.Load()},
		{"min", l.gate.control.policy.Min}, {"max", l.gate.control.policy.Max},
		{"latency", base}, {"probing", probing}, {"rejected", l.rejected.n.Load()},
	}}
}

// adaptiveGate counts the requests in flight and admits those below the limit. It collects the
// latencies of a window, the period after which adaptiveControl computes the limit again. Points in
// time are durations since the service was created. Requests take no lock, except the one that ends a
// window.
type adaptiveGate struct {
	limit     atomic.Int64
	start     atomic.Int64 // the start of the window, in nanoseconds
	turns     atomic.Int64 // the number of responses that the window needs, as a multiple of peak
	minLength atomic.Int64 // the shortest length of the window, in nanoseconds; 0 during a probe

	_ [64]byte // separates fields that are written for each request

	inFlight atomic.Int64
	peak     atomic.Int64  // the largest inFlight at an admission in this window
	samples  atomic.Uint64 // sum of the results of adaptiveSample in this window
	squares  atomic.Uint64 // sum of the squares of the logarithms in samples
	dropped  atomic.Int64  // requests of this window that overloaded inner

	mu        sync.Mutex // held while a window ends
	control   adaptiveControl
	looks     int   // how often giveUp has checked the current probe
	unsampled int64 // inFlight minus the number of samples, at the last check by giveUp
}

// A window needs adaptiveLeast responses, and adaptiveTurns times as many as were in flight, before
// it may end. A shorter one would miss the responses to expensive requests, because those that
// began earlier do not count. Until the first probe ends, as many responses as requests in flight
// are enough, so that a limit that is much too high is soon left.
const (
	adaptiveLeast = 20
	adaptiveTurns = 2
)

// newAdaptiveGate returns a gate that starts with the limit p.Initial.
func newAdaptiveGate(p AdaptivePolicy) *adaptiveGate {
	g := &adaptiveGate{control: newAdaptiveControl(p)}
	g.limit.Store(int64(p.Initial))
	g.minLength.Store(int64(p.Window))
	g.turns.Store(1)
	return g
}

// hasRoom reports whether a slot is free.
func (g *adaptiveGate) hasRoom() bool { return g.inFlight.Load() < g.limit.Load() }

// take takes a slot for a request. It returns false if all are in use.
func (g *adaptiveGate) take() bool {
	// With a plain addition, concurrent requests could exceed the limit for a moment.
	for {
		n := g.inFlight.Load()
		if n >= g.limit.Load() {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			g.updatePeak(n + 1)
			return true
		}
	}
}

// updatePeak raises peak to n, the requests in flight after an admission.
func (g *adaptiveGate) updatePeak(n int64) {
	for {
		peak := g.peak.Load()
		if n <= peak || g.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// A window's measurements are summed up in one word, so that one atomic addition updates both the
// count and the sum. Each sample adds 1 to the upper 24 bits, and log2(latency in ns) × 1024 to
// the lower 40 bits.
const (
	adaptiveCount = 40
	adaptiveUnit  = 1024
)

// adaptiveSample returns the summand for one request with this latency.
func adaptiveSample(latency time.Duration) uint64 {
	// The 1 in the upper bits counts the sample. The latency is at least 1 ns, because log2(0) is not finite; 0.5
	// rounds.
	return 1<<adaptiveCount | uint64(math.Log2(float64(max(latency, 1)))*adaptiveUnit+0.5)
}

// adaptiveSum returns the number of samples in a sum, and the mean of their logarithms.
func adaptiveSum(samples uint64) (n int64, mean float64) {
	n = int64(samples >> adaptiveCount)
	return n, float64(samples&(1<<adaptiveCount-1)) / adaptiveUnit / float64(max(n, 1))
}

// sample records the latency of a successful request, and reports whether that ended the window and
// changed the limit. It ignores a request that began in an earlier window, because its latency belongs
// to another limit.
func (g *adaptiveGate) sample(start, now time.Duration) bool {
	if int64(start) < g.start.Load() {
		return false
	}
	s := adaptiveSample(now - start)
	log := s & (1<<adaptiveCount - 1) // the logarithm, without the count in the upper bits
	g.squares.Add(log * log)
	return g.endWindow(g.samples.Add(s), now)
}

// drop records that a request overloaded inner, and reports whether that ended the window and changed
// the limit.
func (g *adaptiveGate) drop(now time.Duration) bool {
	g.dropped.Add(1)
	return g.endWindow(g.samples.Load(), now)
}

// endWindow computes a new limit and returns true, if the window has lasted long enough. Otherwise, or
// if another goroutine is doing the same, it returns false. samples is the current value of g.samples.
func (g *adaptiveGate) endWindow(samples uint64, now time.Duration) bool {
	if !g.enough(samples, now) || !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if !g.enough(g.samples.Load(), now) { // another goroutine was faster
		return false
	}
	// A concurrent sample may be counted in the next window.
	w := g.nextWindow(now)
	g.limit.Store(g.control.step(w))
	// Until its first probe has ended, the gate used shorter windows: see adaptiveTurns.
	if !g.control.first {
		g.turns.Store(adaptiveTurns)
	}
	// A probe ends with its last response, so that its low limit does not last longer than needed.
	if g.control.probing {
		// giveUp compares the progress of the probe with these.
		g.minLength.Store(0)
		g.looks, g.unsampled = 0, g.inFlight.Load()
	} else {
		g.minLength.Store(int64(g.control.policy.Window))
	}
	return true
}

// nextWindow returns the measurements of the window that ends now, and begins the next one.
func (g *adaptiveGate) nextWindow(now time.Duration) adaptiveWindow {
	// From now on, sample ignores requests that began before, because they belong to the old limit.
	g.start.Store(int64(now))
	w := adaptiveWindow{dropped: g.dropped.Swap(0), peak: g.peak.Swap(0)}
	w.samples, w.latency = adaptiveSum(g.samples.Swap(0))
	if n := float64(w.samples); n > 0 {
		// The variance is the mean of the squares less the square of the mean. Rounding may make it negative.
		square := float64(g.squares.Swap(0)) / (adaptiveUnit * adaptiveUnit) / n
		w.spread = math.Sqrt(max(square-w.latency*w.latency, 0))
		w.doubt = 2 * w.spread / math.Sqrt(n)
	}
	return w
}

// probe returns when the current probe began, and after which time giveUp should check it. Both are 0
// if no probe is running.
func (g *adaptiveGate) probe() (start, delay time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.probing {
		return 0, 0
	}
	return time.Duration(g.start.Load()), time.Duration(g.control.patience())
}

// adaptiveLooks is the largest number of times that the method giveUp checks one probe. The last
// check ends the probe.
const adaptiveLooks = 8

// giveUp checks the probe that began at start. It ends the probe if no request has finished since the
// last check, because a probe without progress would keep the limit low, and in any case at check
// number adaptiveLooks. ended reports whether it has ended the probe, and retry whether to call it
// again.
func (g *adaptiveGate) giveUp(start, now time.Duration) (ended, retry bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The timer was set for an earlier probe.
	if !g.control.probing || g.start.Load() != int64(start) {
		return false, false
	}
	// Without progress, as many requests are still without a latency as at the last check.
	n, _ := adaptiveSum(g.samples.Load())
	unsampled := g.inFlight.Load() - n
	if g.looks++; unsampled < g.unsampled && g.looks < adaptiveLooks {
		g.unsampled = unsampled
		return false, true
	}
	g.nextWindow(now)
	g.limit.Store(g.control.giveUp())
	g.minLength.Store(int64(g.control.policy.Window))
	return true, false
}

// enough reports whether a window with these samples may end at the time now.
func (g *adaptiveGate) enough(samples uint64, now time.Duration) bool {
	// Requests that overloaded inner count as responses too, although they give no latency.
	n := int64(samples>>adaptiveCount) + g.dropped.Load()
	if n < adaptiveLeast || n < g.turns.Load()*g.peak.Load() {
		return false
	}
	return int64(now)-g.start.Load() >= g.minLength.Load()
}

// found returns what Describe shows: the estimated latency without a queue, or 0 if there is none yet,
// and whether a probe is running.
func (g *adaptiveGate) found() (base time.Duration, probing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// base is a base-2 logarithm.
	if g.control.base > 0 {
		base = time.Duration(math.Exp2(g.control.base)).Round(time.Microsecond)
	}
	return base, g.control.probing
}
