package layer

import "math"

// adaptiveControl computes the limit of an [AdaptiveLimit], anew after each window of measurements. It
// is not safe for concurrent use.
//
// A window lasts at least as long as the policy's Window. It also needs at least 20 responses, and at
// least twice as many as requests were in flight, or once as many until the first probe ends. After
// each window the limit L becomes the following value, bounded by Min and Max:
//
//	gradient = min(1, Tolerance · base · spread / latency)
//	L        = L · max(1/2, gradient · (1 - dropped)) + min(√L, L/4)
//
// latency is the geometric mean of the latencies in the window, because the gradient is a ratio. base
// is the estimated latency without a queue. spread is one and a half standard deviations of the
// latencies, as a factor. It is large if requests differ much in cost: then some windows see many
// expensive requests and others hardly any, which must not look like a queue. A queue makes it
// smaller, because all requests wait equally long. dropped is the share of requests that overloaded
// inner. The last term is left out if less than half of L is used or more than 1 % are dropped.
//
// A probe is a short window with the limit (L - min(√L, L/4)) / 2. It measures base, because half of L
// should cause no queue. A probe runs when the limit is first used, every 100 windows, and when L has
// fallen to 0.6 of its maximum. If the latency fell in proportion to the limit, and is still above
// base or this is the first probe, requests still queue in inner. Then L falls to at most twice the
// probe's limit, and the probe continues with half its limit.
type adaptiveControl struct {
	policy AdaptivePolicy

	limit    float64 // L of the formula
	enforced float64 // the limit in use: limit, or a lower one during a probe

	// base and loaded are latencies. The unit is the base-2 logarithm of nanoseconds.
	base   float64 // the estimated latency without a queue; 0 if unknown
	loaded float64 // the latency in the window before the current probe or step of a probe

	probing     bool    // the limit is lower for a while, to measure base
	first       bool    // no probe has ended yet
	sure        bool    // loaded was measured by an earlier step of this probe
	loadedLimit float64 // enforced when loaded was measured
	probeAge    int     // windows since the last probe; -1 before the first one
	mark        float64 // the largest value of limit since the last probe
}

// adaptiveWindow holds the measurements of a single adaptiveGate window.
type adaptiveWindow struct {
	samples, dropped int64
	latency          float64 // geometric mean of the samples, as a base-2 logarithm
	spread           float64 // the standard deviation of the logarithms
	doubt            float64 // two standard errors of latency
	peak             int64   // the largest number of requests in flight
}

// droppedShare returns the share of the window's requests that overloaded inner, 0 to 1.
func (w adaptiveWindow) droppedShare() float64 {
	return float64(w.dropped) / float64(max(w.samples+w.dropped, 1))
}

const (
	adaptiveEvery    = 100  // windows between two probes
	adaptiveFall     = 0.6  // a probe is due when the limit has fallen to this share of its maximum
	adaptiveShrink   = 0.5  // the limit shrinks at most to this share in one window
	adaptiveBearable = 0.01 // the limit grows only if at most this share of requests overloaded inner
	adaptiveLonger   = 0.32 // log2(1.25): a latency further above base is measured again
	adaptiveSpread   = 1.5  // standard deviations by which the latency may exceed Tolerance
	adaptiveQueued   = 0.14 // log2(1.1): tolerance in the check whether the latency fell like the limit
)

// newAdaptiveControl returns a control whose limit is p.Initial, and which has measured nothing yet.
func newAdaptiveControl(p AdaptivePolicy) adaptiveControl {
	initial := float64(p.Initial)
	return adaptiveControl{policy: p, limit: initial, enforced: initial, mark: initial, probeAge: -1, first: true}
}

// step computes the limit for the next window from the measurements of the last one.
func (c *adaptiveControl) step(w adaptiveWindow) int64 {
	if c.probing {
		c.probed(w)
	} else {
		c.adapt(w)
	}
	// probed may just have ended the probe, so this checks again.
	if !c.probing {
		c.enforced = c.limit
	}
	return int64(c.enforced)
}

// adapt updates the base latency and the limit after a window that was not a probe, with the formula
// in [adaptiveControl]. It starts a probe if one is due.
//
// If at most half of the limit was used, the limit did not cause a high latency. Then it shrinks only
// because of dropped requests, and does not grow.
func (c *adaptiveControl) adapt(w adaptiveWindow) {
	// If at most half of the limit was in use, the limit cannot be the reason for a high latency.
	used := float64(w.peak) > c.enforced/2
	gradient := 1.0
	if w.samples > 0 {
		c.follow(w, used)
		if used {
			// Latencies are logarithms here, so their difference is the logarithm of the ratio.
			gradient = min(c.policy.Tolerance*math.Exp2(c.base-w.latency+adaptiveSpread*w.spread), 1)
		}
	}
	dropped := w.droppedShare()
	growth := 0.0
	if used && dropped <= adaptiveBearable {
		growth = adaptiveHeadroom(c.limit)
	}
	// The limit at most halves in one window, however bad the measurements are.
	c.set(c.limit*max(gradient*(1-dropped), adaptiveShrink) + growth)
	if used && w.samples > 0 {
		c.probeWhenDue(w)
	}
}

// set sets c.limit to limit, bounded by Min and Max.
func (c *adaptiveControl) set(limit float64) {
	c.limit = min(max(limit, float64(c.policy.Min)), float64(c.policy.Max))
	c.mark = max(c.mark, c.limit)
}

// follow moves base, the estimated latency without a queue, towards the latency of the window w,
// which was not a probe. used reports whether more than half of the limit was used. If used is true
// and the limit is above its minimum, a latency above base is ignored, because it may come from a
// queue.
func (c *adaptiveControl) follow(w adaptiveWindow, used bool) {
	// excess is the logarithm of the ratio of latency to base. The divisors below smooth the estimate.
	switch excess := w.latency - c.base; {
	case c.base == 0:
		c.base = w.latency
	case excess < 0:
		// A difference within the statistical error is no lower latency.
		c.base += min(excess+w.doubt, 0) / 4
	case !used:
		// The queue does not come from the limit.
		c.base += excess / 16
	case c.enforced <= float64(c.policy.Min):
		// Min does not allow a probe with a lower limit.
		c.base += excess / 2
	}
}

// probeWhenDue starts a probe if one is due. It lowers the limit for the next window, which then
// measures the latency without a queue. w is the window that has just ended.
func (c *adaptiveControl) probeWhenDue(w adaptiveWindow) {
	// A probe is due at first use, every adaptiveEvery windows, and when the limit has fallen a lot.
	first := c.probeAge < 0
	c.probeAge++
	if !first && c.probeAge < adaptiveEvery && c.limit > adaptiveFall*c.mark {
		return
	}
	c.probing, c.probeAge, c.mark = true, 0, c.limit
	c.loaded, c.loadedLimit = w.latency, c.enforced
	c.sure = false
	// c.limit stays as it is: after the probe, it is the limit again.
	c.probe((c.limit - adaptiveHeadroom(c.limit)) / 2)
}

// adaptiveHeadroom returns the amount by which the limit may grow in one window.
func adaptiveHeadroom(limit float64) float64 { return min(math.Sqrt(limit), limit/4) }

// probe sets the limit that is in use during a probe. c.limit, to which the probe returns, stays the
// same.
func (c *adaptiveControl) probe(limit float64) {
	c.enforced = max(math.Floor(limit), float64(c.policy.Min))
}

// patience returns the time after which the progress of a probe is checked, in nanoseconds.
// It is four times the latency before the probe.
func (c *adaptiveControl) patience() float64 { return 4 * math.Exp2(c.loaded) }

// giveUp ends a probe whose measurements cannot be used, and returns the limit for the next window.
func (c *adaptiveControl) giveUp() int64 {
	c.probing, c.enforced = false, c.limit
	return int64(c.enforced)
}

// probed applies the measurements of a probe's window. The probe ends if no latency was measured, or if
// its limit was not used up or cannot be lowered. It continues with half its limit in two cases: the
// latency has fallen in proportion to the limit, but not to base, so that requests still queue in
// inner; or the first window's latency is much longer than base, which may be chance, so that it is
// measured again. When the probe ends, base moves to the measured latency.
func (c *adaptiveControl) probed(w adaptiveWindow) {
	// Requests that a probe overloads lower the limit as in any other window.
	c.set(c.limit * max(1-w.droppedShare(), adaptiveShrink))
	if w.samples == 0 {
		c.probing = false
		return
	}
	excess := w.latency - c.base
	// lower: with a lower limit, the latency could be lower. That is so if the limit was used up and is above its
	// minimum.
	lower := float64(w.peak) >= c.enforced && c.enforced > float64(c.policy.Min)
	// queued: the latency has fallen at least in proportion to the limit, as it does while requests wait in inner.
	queued := (c.first || excess > 0) && w.latency-c.loaded+w.doubt < math.Log2(c.enforced/c.loadedLimit)+adaptiveQueued
	if lower && (queued || excess > adaptiveLonger+w.doubt && !c.sure) {
		if queued {
			c.set(min(c.limit, 2*c.enforced))
		}
		// The next step compares its latency with the one of this step.
		c.loaded, c.loadedLimit, c.sure = w.latency, c.enforced, true
		c.probe(c.enforced / 2)
		return
	}
	// The probe is over, and the measured latency is that without a queue.
	c.probing, c.first = false, false
	if excess < 0 {
		c.base += min(excess+w.doubt, 0)
	} else {
		c.base += excess / 2 // half, because one measurement may be an outlier
	}
}
