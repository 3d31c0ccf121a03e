package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// adaptiveGate is the accounting of an AdaptiveLimit: who is in flight, and
// what the window saw. Times are counted from when the gate was made. Taking a
// slot, sampling and giving it back use no lock; the one that happens to end a
// window takes the step.
type adaptiveGate struct {
	limit atomic.Int64
	began atomic.Int64 // when the window began, in nanoseconds
	least atomic.Int64 // how long it is at least; a probe is as short as can be

	_ [64]byte // what is written all the time keeps away from what is read

	inFlight atomic.Int64
	peak     atomic.Int64  // in flight, at an admission in this window
	samples  atomic.Uint64 // adaptiveSample summed up
	dropped  atomic.Int64

	mu      sync.Mutex // whoever ends a window
	control adaptiveControl
	looks   int   // at the probe, by giveUp
	left    int64 // what there was to do then
}

// adaptiveLeast is how many samples a window has at least.
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
			g.climbed(n + 1)
			return true
		}
	}
}

func (g *adaptiveGate) climbed(n int64) {
	for {
		peak := g.peak.Load()
		if n <= peak || g.peak.CompareAndSwap(peak, n) {
			return
		}
	}
}

// A sample is a latency's logarithm, base 2, in 1024ths, and how many there
// are above it: both sums are changed at once. 40 bits hold sixteen million
// latencies, as many as 24 bits can count.
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

// sample takes the latency of a response whose request began in this window:
// what began before it saw another limit. It reports whether that ended the
// window.
func (g *adaptiveGate) sample(began, now time.Duration) bool {
	if int64(began) < g.began.Load() {
		return false
	}
	return g.endWindow(g.samples.Add(adaptiveSample(now-began)), now)
}

// drop takes a request into account that inner did not cope with.
func (g *adaptiveGate) drop(now time.Duration) bool {
	g.dropped.Add(1)
	return g.endWindow(g.samples.Load(), now)
}

// endWindow takes a step of the control once the window has seen enough: as
// many responses as were in flight, which takes as long as one of them.
func (g *adaptiveGate) endWindow(samples uint64, now time.Duration) bool {
	if !g.enough(samples, now) || !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if !g.enough(g.samples.Load(), now) { // another was quicker
		return false
	}
	// Whoever is between its look at began and its sample is counted in the
	// next window.
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

// probe returns when the present probe began, and when to look whether to give
// it up; after is 0 if there is none.
func (g *adaptiveGate) probe() (began, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.control.probing {
		return 0, 0
	}
	return time.Duration(g.began.Load()), time.Duration(g.control.patience())
}

// adaptiveLooks is after how many times its patience a probe is given up.
const adaptiveLooks = 8

// giveUp ends the probe that began then, if it does not get on: slots that are
// held for long may leave none to learn from. It reports whether it did, or
// else whether to look again.
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

// found returns the latency without a queue, as far as it is known, and
// whether the limit is lower just now to find it.
func (g *adaptiveGate) found() (base time.Duration, probing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.control.base > 0 {
		base = time.Duration(math.Exp2(g.control.base)).Round(time.Microsecond)
	}
	return base, g.control.probing
}
