package layer

import "math"

// adaptiveControl computes the limit, one step for each window. It is not safe
// for concurrent use.
//
// A window lasts at least Window and as many responses as were in flight, at
// least 20. latency is the geometric mean of its latencies, because the
// gradient is a ratio. dropped is the share of overloaded requests. After each
// window the limit L becomes
//
//	gradient = min(1, Tolerance · base / latency)
//	L        = L · max(1/2, gradient · (1 - dropped)) + min(√L, L/4)
//
// within Min and Max. L does not grow while half of it is unused or more than 1
// % are dropped. base is the latency without a queue.
//
// Every 50 windows, when the limit is first used, and when it has fallen to 0.6
// of its maximum, one short window is a probe with the limit (L - min(√L, L/4))
// / 2. L without its headroom is Tolerance times the capacity of inner, so half
// of it meets no queue. If the latency falls in proportion to the limit, there
// still is a queue: the next probe is half as large, and L at most twice this
// one.
type adaptiveControl struct {
	policy AdaptivePolicy

	limit    float64 // as found; a probe enforces less for a moment
	enforced float64

	// Latencies are logarithms, base 2, of nanoseconds.
	base   float64 // without a queue, as far as is known; 0: not at all
	loaded float64 // of the window before a probe, or the probe before that

	probing bool
	sure    bool    // loaded is from a probe
	before  float64 // the limit when loaded was measured
	since   int     // windows after the last probe; -1: there has been none
	mark    float64 // the highest limit since then
}

// adaptiveWindow is what a window saw.
type adaptiveWindow struct {
	samples, dropped int64
	latency          float64 // geometric mean of the samples, as a logarithm
	peak             int64   // the most in flight
}

func (w adaptiveWindow) droppedShare() float64 {
	return float64(w.dropped) / float64(max(w.samples+w.dropped, 1))
}

const (
	adaptiveEvery    = 50   // windows between two probes
	adaptiveFall     = 0.6  // of the limit, and it is time for a probe
	adaptiveShrink   = 0.5  // the most that one window takes from the limit
	adaptiveBearable = 0.01 // share of dropped requests that does not hold growth up
	adaptiveLonger   = 0.32 // log2(1.25): how much longer is more than chance
	adaptiveQueued   = 0.14 // log2(1.1): how far from proportional still is proportional
)

func newAdaptiveControl(p AdaptivePolicy) adaptiveControl {
	initial := float64(p.Initial)
	return adaptiveControl{policy: p, limit: initial, enforced: initial, mark: initial, since: -1}
}

// step takes a window into account and returns the limit to enforce.
func (c *adaptiveControl) step(w adaptiveWindow) int64 {
	if c.probing {
		c.probed(w)
	} else {
		c.adapt(w)
	}
	if !c.probing {
		c.enforced = c.limit
	}
	return int64(c.enforced)
}

// adapt follows the gradient.
func (c *adaptiveControl) adapt(w adaptiveWindow) {
	used := float64(w.peak) > c.enforced/2
	gradient := 1.0
	if w.samples > 0 {
		c.follow(w.latency, used)
		if used {
			gradient = min(c.policy.Tolerance*math.Exp2(c.base-w.latency), 1)
		}
	}
	dropped := w.droppedShare()
	grow := 0.0
	if used && dropped <= adaptiveBearable {
		grow = adaptiveHeadroom(c.limit)
	}
	c.set(c.limit*max(gradient*(1-dropped), adaptiveShrink) + grow)
	if used && w.samples > 0 {
		c.probeWhenDue(w)
	}
}

// set keeps the limit within its bounds.
func (c *adaptiveControl) set(limit float64) {
	c.limit = min(max(limit, float64(c.policy.Min)), float64(c.policy.Max))
	c.mark = max(c.mark, c.limit)
}

// follow learns what the latency without a queue is from a window that was not
// a probe.
func (c *adaptiveControl) follow(latency float64, used bool) {
	switch over := latency - c.base; {
	case c.base == 0:
		c.base = latency
	case over < 0:
		c.base += over / 4
	case !used:
		// The queue does not come from the limit.
		c.base += over / 16
	case c.enforced <= float64(c.policy.Min):
		// There is nothing lower to probe with.
		c.base += over / 2
	}
}

// probeWhenDue lowers the limit for one window, to see the latency without a
// queue. What the gradient holds is limit - √limit, at most Tolerance ≤ 2
// times the capacity; half of that has no queue.
func (c *adaptiveControl) probeWhenDue(w adaptiveWindow) {
	first := c.since < 0
	c.since++
	if !first && c.since < adaptiveEvery && c.limit > adaptiveFall*c.mark {
		return
	}
	c.probing, c.since, c.mark = true, 0, c.limit
	c.loaded, c.before = w.latency, c.enforced
	c.sure = false
	c.probe((c.limit - adaptiveHeadroom(c.limit)) / 2)
}

// adaptiveHeadroom is by how much the limit grows in a window.
func adaptiveHeadroom(limit float64) float64 { return min(math.Sqrt(limit), limit/4) }

func (c *adaptiveControl) probe(limit float64) {
	c.enforced = max(math.Floor(limit), float64(c.policy.Min))
}

// patience is after how many nanoseconds a probe should have got on: four times
// the latency.
func (c *adaptiveControl) patience() float64 { return 4 * math.Exp2(c.loaded) }

// giveUp ends a probe that learnt nothing.
func (c *adaptiveControl) giveUp() int64 {
	c.probing, c.enforced = false, c.limit
	return int64(c.enforced)
}

// probed ends a probe, or makes it deeper: a latency that fell just as the
// limit did is still that of a queue, and one that is much longer than it was
// known to be has to be seen at two limits to be believed.
func (c *adaptiveControl) probed(w adaptiveWindow) {
	c.set(c.limit * max(1-w.droppedShare(), adaptiveShrink))
	if w.samples == 0 {
		c.probing = false
		return
	}
	over := w.latency - c.base
	lower := float64(w.peak) >= c.enforced && c.enforced > float64(c.policy.Min)
	queued := w.latency-c.loaded < math.Log2(c.enforced/c.before)+adaptiveQueued
	if lower && (queued || over > adaptiveLonger && !c.sure) {
		if queued {
			c.set(min(c.limit, 2*c.enforced))
		}
		c.loaded, c.before, c.sure = w.latency, c.enforced, true
		c.probe(c.enforced / 2)
		return
	}
	c.probing = false
	if over < 0 {
		c.base = w.latency
	} else {
		c.base += over / 2 // one probe may have been unlucky
	}
}
