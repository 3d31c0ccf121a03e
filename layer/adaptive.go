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

// AdaptivePolicy configures an [AdaptiveLimit]. A field that is 0 has its default value.
type AdaptivePolicy struct {
	Min     int // the lowest limit, 1 to Max; default 1
	Max     int // the highest limit, at least Min; default 1000, or Min if that is larger
	Initial int // the limit at the start, Min to Max; default 20, or the nearest value in that range

	// Tolerance is a ratio: the latency divided by the latency without a queue. If the
	// ratio is higher, the limit shrinks. Tolerance is 1.1 to 2; the default is 1.5. A
	// higher value keeps a server with varying latency busier, but allows a longer queue in
	// the server.
	Tolerance float64

	// Window is the shortest time between two changes of the limit: 1 ms to 1 min; default
	// 100 ms.
	Window time.Duration
}

// Validate returns an error that names the first invalid field, or nil.
func (p AdaptivePolicy) Validate() error {
	set := p.filled()
	switch {
	case set.Min < 1:
		return fmt.Errorf("AdaptivePolicy.Min is %d, must be at least 1", p.Min)
	case set.Max < set.Min:
		return fmt.Errorf("AdaptivePolicy.Max is %d, must be at least Min, %d", set.Max, set.Min)
	case set.Initial < set.Min || set.Initial > set.Max:
		return fmt.Errorf("AdaptivePolicy.Initial is %d, must be %d to %d", set.Initial, set.Min, set.Max)
	case !(set.Tolerance >= 1.1 && set.Tolerance <= 2):
		return fmt.Errorf("AdaptivePolicy.Tolerance is %v, must be 1.1 to 2", p.Tolerance)
	case set.Window < time.Millisecond || set.Window > time.Minute:
		return fmt.Errorf("AdaptivePolicy.Window is %v, must be 1ms to 1m", p.Window)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields. The defaults of Initial and
// Tolerance come from Netflix's Gradient2, and those of Window, Min and Max from Envoy.
func (p AdaptivePolicy) filled() AdaptivePolicy {
	p.Min = cmp.Or(p.Min, 1)
	p.Max = cmp.Or(p.Max, max(1000, p.Min))
	p.Initial = cmp.Or(p.Initial, min(max(20, p.Min), p.Max))
	p.Tolerance = cmp.Or(p.Tolerance, 1.5)
	p.Window = cmp.Or(p.Window, 100*time.Millisecond)
	return p
}

// AdaptiveLimit is a [Limit] with a size that follows the latency of inner. The limit rises while
// the latency stays low, and falls when requests wait in inner. The formula is Gradient2 of
// Netflix's concurrency-limits, with the growth of Envoy's adaptive concurrency filter.
//
// Admission: a request is admitted while the number of requests in flight is below the limit.
// Ready waits for a free slot, then for inner.
//
// Cancellation: a request is rejected if its context has ended. The slot of a canceled request
// stays taken until the request ends, and its latency does not count.
//
// Body: a request keeps its slot until the response ends, see [WithCompletion]. With [AtReturn], it
// keeps the slot until inner returns. The latency is the time to the response headers.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. Responses of class [Throttled] and
// timeouts (errors that match [context.DeadlineExceeded]) lower the limit, unless the caller
// canceled the request. Other failures do not change it.
//
// Cost: two clock readings, a logarithm and a few atomic operations; no allocation.
// AdaptiveLimit panics if the policy is invalid, see [AdaptivePolicy.Validate].
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
			rejected: tally{to: o.to.LayerRejections.With("layer", "adaptive")},
		}
		l.changed()
		return l
	}
}

type adaptiveLimit[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	gate     *adaptiveGate
	born     time.Time
	freed    notify.Broadcast
	full     atomic.Pointer[Error] // the rejection for the current limit, shared by all rejected requests
	rejected tally
}

func (l *adaptiveLimit[Req, Rsp]) Ready(ctx context.Context) error {
	return awaitRoom(ctx, &l.freed, l.gate.hasRoom, l.Service)
}

func (l *adaptiveLimit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "adaptive", l.target)
	}
	if !l.gate.take() {
		l.rejected.inc()
		return rsp, l.full.Load()
	}
	returned := false
	defer l.dropUnless(&returned, &rsp, &err, l)
	began := time.Since(l.born)
	rsp, err = l.Service.Call(ctx, req)
	l.learn(ctx, began, Outcome[Rsp]{Response: rsp, Err: err, Ended: l.bare && err == nil})
	if err != nil {
		return rsp, err
	}
	rsp = l.complete(ctx, rsp, l)
	returned = true
	return rsp, nil
}

// learn passes the outcome of a request to l.gate, which computes the limit. For a success it
// passes the latency. If the request overloaded inner (see [AdaptiveLimit]), it calls the method
// drop. Other outcomes are ignored. The argument began is the time from l.born to the start of the
// request.
func (l *adaptiveLimit[Req, Rsp]) learn(ctx context.Context, began time.Duration, out Outcome[Rsp]) {
	var ended bool
	switch class := l.classOf(ctx, out); {
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

// watchProbe starts a timer if a probe is running. A probe is a window with a lower limit, which
// measures the latency without a queue. The timer ends the probe if no request finishes for four
// times the latency that was measured before the probe.
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

// changed updates everything that depends on the limit, and must be called after each change of the
// limit. It prepares the error that later rejections return, because that error has the limit in
// its text. It also wakes the callers of Ready and sets the gauge.
func (l *adaptiveLimit[Req, Rsp]) changed() {
	n := l.gate.limit.Load()
	l.full.Store(&Error{
		Layer: "adaptive", Target: l.target, Kind: errShed, Reason: fmt.Sprintf("%d of %[1]d in flight", n),
	})
	defer l.freed.Wake()
	l.to.Limit.Set(float64(n))
}

// Data does nothing. The service has the methods of an [Observer] and observes each response
// itself, because a separate Observer would be an allocation.
func (l *adaptiveLimit[Req, Rsp]) Data(int) {}

func (l *adaptiveLimit[Req, Rsp]) End(error) {
	l.gate.inFlight.Add(-1)
	l.freed.Wake()
}

func (l *adaptiveLimit[Req, Rsp]) Describe() Node {
	base, probing := l.gate.found()
	return Node{Name: "adaptive", State: State{
		{"in_flight", l.gate.inFlight.Load()}, {"limit", l.gate.limit.Load()},
		{"min", l.gate.control.policy.Min}, {"max", l.gate.control.policy.Max},
		{"latency", base}, {"probing", probing}, {"rejected", l.rejected.n.Load()},
	}}
}

// adaptiveGate counts the requests in flight, and collects the measurements of the current window.
// A window is a period at the end of which the limit is computed again. The methods take points in
// time as durations since the creation of the service. A request locks the mutex only if it ends a
// window.
type adaptiveGate struct {
	limit atomic.Int64
	began atomic.Int64 // the start of the window, in nanoseconds
	least atomic.Int64 // the shortest length of the window, in nanoseconds; 0 during a probe

	_ [64]byte // separates fields that are written for each request

	inFlight atomic.Int64
	peak     atomic.Int64  // the largest inFlight at an admission in this window
	samples  atomic.Uint64 // sum of the results of adaptiveSample in this window
	dropped  atomic.Int64  // requests of this window that overloaded inner

	mu      sync.Mutex // held while a window ends
	control adaptiveControl
	looks   int   // how often giveUp has checked the current probe
	left    int64 // inFlight minus the number of samples, at the last check by giveUp
}

// adaptiveLeast is the number of responses that a window needs before it may end.
const adaptiveLeast = 20

func newAdaptiveGate(p AdaptivePolicy) *adaptiveGate {
	g := &adaptiveGate{control: newAdaptiveControl(p)}
	g.limit.Store(int64(p.Initial))
	g.least.Store(int64(p.Window))
	return g
}

func (g *adaptiveGate) hasRoom() bool { return g.inFlight.Load() < g.limit.Load() }

func (g *adaptiveGate) take() bool {
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

func (g *adaptiveGate) updatePeak(n int64) {
	for {
		peak := g.peak.Load()
		if n <= peak || g.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// The measurements of a window are summed up in one word, so that one atomic addition
// updates both the count and the sum. Each sample adds 1 to the upper 24 bits, and
// log2(latency in ns) × 1024 to the lower 40 bits.
const (
	adaptiveCount = 40
	adaptiveUnit  = 1024
)

func adaptiveSample(latency time.Duration) uint64 {
	return 1<<adaptiveCount | uint64(math.Log2(float64(max(latency, 1)))*adaptiveUnit+0.5)
}

func adaptiveSum(samples uint64) (n int64, mean float64) {
	n = int64(samples >> adaptiveCount)
	return n, float64(samples&(1<<adaptiveCount-1)) / adaptiveUnit / float64(max(n, 1))
}

// sample records the latency of a successful request, and reports whether that ended the
// window. It ignores a request that began in an earlier window, because the limit was
// different then.
func (g *adaptiveGate) sample(began, now time.Duration) bool {
	if int64(began) < g.began.Load() {
		return false
	}
	return g.endWindow(g.samples.Add(adaptiveSample(now-began)), now)
}

// drop records that a request overloaded inner, and reports whether this record ended the
// window.
func (g *adaptiveGate) drop(now time.Duration) bool {
	g.dropped.Add(1)
	return g.endWindow(g.samples.Load(), now)
}

// endWindow ends the window and computes the new limit. It returns true if it did so. It does
// nothing and returns false if the window has too few responses or is too short, or if another
// goroutine ends it. The argument samples is the current value of g.samples.
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
	if g.control.probing {
		g.least.Store(0)
		g.looks, g.left = 0, g.inFlight.Load()
	} else {
		g.least.Store(int64(g.control.policy.Window))
	}
	return true
}

func (g *adaptiveGate) nextWindow(now time.Duration) adaptiveWindow {
	g.began.Store(int64(now))
	w := adaptiveWindow{dropped: g.dropped.Swap(0), peak: g.peak.Swap(0)}
	w.samples, w.latency = adaptiveSum(g.samples.Swap(0))
	return w
}

// probe returns the start of the current probe, and the time to wait before the method giveUp is
// called. Both results are 0 if no probe is running.
func (g *adaptiveGate) probe() (began, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.probing {
		return 0, 0
	}
	return time.Duration(g.began.Load()), time.Duration(g.control.patience())
}

// adaptiveLooks is the largest number of times that the method giveUp checks one probe. The last
// check ends the probe.
const adaptiveLooks = 8

// giveUp checks the probe that started at the time began. It ends the probe if no request has
// finished since the last check, because a probe that makes no progress would keep the limit low.
// Check number adaptiveLooks always ends the probe. The result ended is true if giveUp ended the
// probe. The result again is true if giveUp must check the probe again.
func (g *adaptiveGate) giveUp(began, now time.Duration) (ended, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.probing || g.began.Load() != int64(began) {
		return false, false
	}
	n, _ := adaptiveSum(g.samples.Load())
	left := g.inFlight.Load() - n
	if g.looks++; left < g.left && g.looks < adaptiveLooks {
		g.left = left
		return false, true
	}
	g.nextWindow(now)
	g.limit.Store(g.control.giveUp())
	g.least.Store(int64(g.control.policy.Window))
	return true, false
}

func (g *adaptiveGate) enough(samples uint64, now time.Duration) bool {
	n := int64(samples>>adaptiveCount) + g.dropped.Load()
	if n < adaptiveLeast || n < g.peak.Load() {
		return false
	}
	return int64(now)-g.began.Load() >= g.least.Load()
}

// found returns the values that Describe shows: the estimated latency without a queue, and whether
// a probe is running. The latency is 0 if no estimate exists yet.
func (g *adaptiveGate) found() (base time.Duration, probing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.control.base > 0 {
		base = time.Duration(math.Exp2(g.control.base)).Round(time.Microsecond)
	}
	return base, g.control.probing
}
