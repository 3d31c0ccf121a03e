package layer

import "math"

// adaptiveControl computes the limit of an [AdaptiveLimit]. It computes a new limit after each
// window of measurements. It is not safe for concurrent use.
//
// A window lasts at least the Window of the policy. It has at least 20 responses, and at
// least as many as requests were in flight. After each window the limit L becomes the
// following value, bounded by Min and Max:
//
//	gradient = min(1, Tolerance · base / latency)
//	L        = L · max(1/2, gradient · (1 - dropped)) + min(√L, L/4)
//
// latency is the geometric mean of the latencies in the window, because the gradient is a
// ratio. base is the estimated latency without a queue. dropped is the share of requests
// that overloaded inner. The last term is left out if less than half of L is used or more
// than 1 % are dropped.
//
// A probe is a short window with the limit (L - min(√L, L/4)) / 2. It measures base, because half
// of L should cause no queue. A probe runs when the limit is first used, every 50 windows, and when
// L has fallen to 0.6 of its maximum. If the latency fell in proportion to the limit, inner still
// has a queue. Then L falls to at most twice the limit of the probe, and the probe continues with
// half its limit.
type adaptiveControl struct {
	policy AdaptivePolicy

	limit    float64 // L of the formula
	enforced float64 // the limit in use: limit, or a lower one during a probe

	// base and loaded are latencies. The unit is the base-2 logarithm of nanoseconds.
	base   float64 // the estimated latency without a queue; 0 if unknown
	loaded float64 // the latency in the window before the current probe or step of a probe

	probing bool
	sure    bool    // loaded was measured by an earlier step of this probe
	before  float64 // enforced when loaded was measured
	since   int     // windows since the last probe; -1 before the first one
	mark    float64 // the largest value of limit since the last probe
}

// adaptiveWindow has the measurements of one window of an adaptiveGate.
type adaptiveWindow struct {
	samples, dropped int64
	latency          float64 // geometric mean of the samples, as a base-2 logarithm
	peak             int64   // the largest number of requests in flight
}

func (w adaptiveWindow) droppedShare() float64 {
	return float64(w.dropped) / float64(max(w.samples+w.dropped, 1))
}

const (
	adaptiveEvery    = 50   // windows between two probes
	adaptiveFall     = 0.6  // a probe is due when the limit has fallen to this share of its maximum
	adaptiveShrink   = 0.5  // the limit shrinks at most to this share in one window
	adaptiveBearable = 0.01 // the limit grows only if at most this share of requests overloaded inner
	adaptiveLonger   = 0.32 // log2(1.25): a latency further above base is measured again
	adaptiveQueued   = 0.14 // log2(1.1): tolerance in the check whether the latency fell like the limit
)

func newAdaptiveControl(p AdaptivePolicy) adaptiveControl {
	initial := float64(p.Initial)
	return adaptiveControl{policy: p, limit: initial, enforced: initial, mark: initial, since: -1}
}

// step applies the measurements of a window, and returns the limit for the next window.
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

// adapt updates the base latency and the limit after a window that was not a probe. It
// starts a probe if one is due.
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

// set sets c.limit to limit, bounded by Min and Max.
func (c *adaptiveControl) set(limit float64) {
	c.limit = min(max(limit, float64(c.policy.Min)), float64(c.policy.Max))
	c.mark = max(c.mark, c.limit)
}

// follow moves base, the estimated latency without a queue, towards latency, the mean of a window
// that was not a probe. The argument used reports whether more than half of the limit was used. If
// used is true and the limit is above its minimum, a latency above base is ignored, because it may
// come from a queue.
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
		// Min does not allow a probe with a lower limit.
		c.base += over / 2
	}
}

// probeWhenDue starts a probe if one is due: it lowers the limit of the next window, which
// then measures the latency without a queue. The argument w is the window that has just
// ended.
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

// adaptiveHeadroom returns the amount by which the limit may grow in one window.
func adaptiveHeadroom(limit float64) float64 { return min(math.Sqrt(limit), limit/4) }

func (c *adaptiveControl) probe(limit float64) {
	c.enforced = max(math.Floor(limit), float64(c.policy.Min))
}

// patience returns the time after which the progress of a probe is checked, in nanoseconds.
// It is four times the latency before the probe.
func (c *adaptiveControl) patience() float64 { return 4 * math.Exp2(c.loaded) }

// giveUp ends a probe without using its measurements, and returns the limit for the next window.
func (c *adaptiveControl) giveUp() int64 {
	c.probing, c.enforced = false, c.limit
	return int64(c.enforced)
}

// probed processes the window of a probe. The probe ends if no latency was measured, the limit was
// not used up, or the limit is at its minimum. Otherwise it continues with half the limit in two
// cases. In the first case the latency fell in proportion to the limit, which means that inner
// still has a queue. In the second case the latency of the first window of the probe is much longer
// than base. The next window then measures it again, because it may be wrong. When the probe ends,
// probed updates base if a latency was measured.
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
		c.base += over / 2 // half, because one measurement may be an outlier
	}
}
