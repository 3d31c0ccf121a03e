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

// AdaptivePolicy configures an [AdaptiveLimit]. Zero fields have their defaults.
type AdaptivePolicy struct {
	Min     int // of the limit, 1 to Max; default 1
	Max     int // of the limit, at least Min; default 1000
	Initial int // limit, Min to Max; default 20, or the nearest value in range

	// Tolerance is the factor by which the latency may exceed the latency without a queue
	// before the limit shrinks: 1.1 to 2, default 1.5. A higher value keeps a server with
	// varying latency busier, and allows a longer queue in it.
	Tolerance float64

	// Window is the least time between two changes of the limit: 1 ms to 1 min; default 100 ms.
	Window time.Duration
}

// Validate returns an error that names the field that is wrong.
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

// filled returns p with defaults in place of zero fields. The defaults of Initial and
// Tolerance come from Netflix's Gradient2, and those of Window, Min and Max from Envoy.
func (p AdaptivePolicy) filled() AdaptivePolicy {
	p.Min = cmp.Or(p.Min, 1)
	p.Max = cmp.Or(p.Max, max(1000, p.Min))
	p.Initial = cmp.Or(p.Initial, min(max(20, p.Min), p.Max))
	p.Tolerance = cmp.Or(p.Tolerance, 1.5)
	p.Window = cmp.Or(p.Window, 100*time.Millisecond)
	return p
}

// AdaptiveLimit is a [Limit] whose size follows the latency of inner: it admits as many
// requests as keep inner busy without a long queue in it. The formula is that of
// Gradient2 in Netflix's concurrency-limits, with the headroom of Envoy's adaptive
// concurrency filter. testdata/adaptive.txt has the results of a simulation.
//
// Admission: a request is admitted only while fewer than the limit are in flight. The
// count is exact under concurrency. Ready waits for a free slot, then for inner.
//
// Cancellation: a request whose context has ended is rejected. The slot of a canceled
// request stays taken until the request ends, and its latency does not count.
//
// Body: a slot is held until the response ends, see [WithCompletion]. The latency is measured
// to the headers. [AtReturn] releases the slots of long streams at the headers.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. Responses of class
// [Throttled] and timeouts (errors that match [context.DeadlineExceeded]) lower the
// limit, unless the caller canceled. Other failures do not change it.
//
// Cost: two clock readings, a logarithm and a few atomic operations; no
// allocation. A probe sets a timer.
//
// An invalid policy panics, see [AdaptivePolicy.Validate].
func AdaptiveLimit[Req, Rsp any](p AdaptivePolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		l := &adaptiveLimit[Req, Rsp]{
			Service:  next,
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
	Service[Req, Rsp]
	options[Rsp]
	gate     *adaptiveGate
	born     time.Time
	freed    notify.Broadcast
	full     atomic.Pointer[Error] // shared by every rejection at one limit
	rejected tally
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
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "adaptive", l.target)
	}
	if !l.gate.take() {
		l.rejected.inc()
		return rsp, l.full.Load()
	}
	returned := false
	defer func() {
		if !returned {
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
	returned = true
	return rsp, nil
}

// learn records the latency of a success, or an overload. Other outcomes are ignored.
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

// watchProbe starts a timer that ends the current probe if it makes no progress.
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

// changed publishes the current limit. It is called after the limit may have changed.
func (l *adaptiveLimit[Req, Rsp]) changed() {
	n := l.gate.limit.Load()
	l.full.Store(&Error{
		Layer: "adaptive", Target: l.target, Kind: errShed, Reason: fmt.Sprintf("%d of %[1]d in flight", n),
	})
	defer l.freed.Wake()
	l.to.Limit.Set(float64(n))
}

// Data and End implement Observer for every response, so that no response allocates one.
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
		{"latency", base}, {"probing", probing}, {"rejected", l.rejected.n.Load()},
	}}
}

// adaptiveGate counts the requests in flight and the samples of the current window. Its
// times are relative to the creation of the layer. Only the request that ends a window
// takes the lock.
type adaptiveGate struct {
	limit atomic.Int64
	began atomic.Int64 // of the window, in nanoseconds
	least atomic.Int64 // the least length of the window; 0 for a probe

	_ [64]byte // separates fields that are written for each request

	inFlight atomic.Int64
	peak     atomic.Int64  // in flight, at an admission in this window
	samples  atomic.Uint64 // adaptiveSample summed up
	dropped  atomic.Int64

	mu      sync.Mutex // held while a window ends
	control adaptiveControl
	looks   int   // checks of the probe by giveUp
	left    int64 // requests of the probe in flight at the last check
}

// adaptiveLeast is the smallest number of samples in a window.
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

// A sample has 1 in the upper 24 bits and log2(latency in ns) × 1024 in the lower 40
// bits. One atomic addition updates both the count and the sum.
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

// sample records the latency of a response and reports whether the window ended. It ignores
// requests that began in an earlier window, because the limit was different then.
func (g *adaptiveGate) sample(began, now time.Duration) bool {
	if int64(began) < g.began.Load() {
		return false
	}
	return g.endWindow(g.samples.Add(adaptiveSample(now-began)), now)
}

// drop records a request that overloaded inner, and reports whether the window ended.
func (g *adaptiveGate) drop(now time.Duration) bool {
	g.dropped.Add(1)
	return g.endWindow(g.samples.Load(), now)
}

// endWindow ends the window and computes a new limit if enough responses have arrived.
// It reports whether it did.
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

// probe returns the start of the current probe and the time after which its progress is
// checked. after is 0 if no probe is running.
func (g *adaptiveGate) probe() (began, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.probing {
		return 0, 0
	}
	return time.Duration(g.began.Load()), time.Duration(g.control.patience())
}

// adaptiveLooks is the largest number of progress checks of one probe.
const adaptiveLooks = 8

// giveUp ends a probe without progress, because long requests may occupy all slots. ended
// reports whether it ended the probe. Otherwise again reports whether to check later.
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

// found returns the latency without a queue (0 if unknown), and whether a probe is running.
func (g *adaptiveGate) found() (base time.Duration, probing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.control.base > 0 {
		base = time.Duration(math.Exp2(g.control.base)).Round(time.Microsecond)
	}
	return base, g.control.probing
}
