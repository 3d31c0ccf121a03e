package balance

import (
	"math"
	"sync/atomic"
	"time"
)

// estimate is a peak EWMA of latencies. With E the value and T the time of the
// last sample, D the decay, and M the median of all endpoints' values now:
//
//	read at t:      M + (E−M) · e^(−(t−T)/D), and nothing changes
//	sample s at t:  if s > E:  E ← s                       (the peak)
//	                else:      w = e^(−(t−T)/D)
//	                           E ← E·w + s·(1−w)           (the average)
//	                T ← t
//
// The samples are those of tower's load::peak_ewma; the reading differs, twice.
//
// tower writes the faded value back whenever it is read, so that a sample that
// comes after a read weighs next to nothing, and how fast an endpoint is
// forgiven depends on how often others looked at it. Here a read is pure, as in
// linkerd's load-biaser: T is moved by samples alone.
//
// In both of them the value fades to nothing, so that whatever was not used for
// a while becomes the best of all, and the slower of two endpoints gets more
// requests the fewer there are. Here it fades to what is usual: knowledge that
// grows old makes an endpoint like its peers, not better. SIMULATION.md has the
// figures. An endpoint of which nothing is known has no value and is like its
// peers from the start.
//
// Value and time are one word, so that a sample that meets another is taken
// again and none is lost:
//
//	bits 63..32  T, in ticks since the balancer began
//	bits 31..0   E, in ns, as a float32 (exact to 6·10⁻⁸); 0 if there was no sample
//
// A tick is 2^20 ns, about a millisecond; the count wraps round after 52 days.
// An endpoint without a sample for that long looks fresh: it fades once more.
//
// Of the samples within one tick the worst one counts, or the first one if
// none is a peak; the others find that no time has passed. A sample that would
// move E by less than a step leaves T as it is for a while, too: if T moved
// each time and E never, or each time by a rounding, a long decay would be
// lost. After a thousandth of the decay T moves all the same, or an estimate
// that every sample confirms would fade.
type estimate struct{ word atomic.Uint64 }

const (
	tickShift = 20
	// late is how far a sample's clock reading may lie behind that of one that
	// was taken after it and stored before it: about a minute. Differences of
	// times wrap round, so that without it such a sample would seem to come 52
	// days later.
	late = 1 << 16
	// step is the least part of itself by which E moves on its way down: 64 of
	// a float32's own steps, so that rounding distorts a move by less than 1 %.
	step = 1.0 / (1 << 18)
	// longestSample is what a longer one counts as, so that whatever is made of
	// an estimate is still a time.
	longestSample = 24 * time.Hour
	// patience is the part of the decay for which T waits for E to move. What
	// is lost then is below step · 1024, 0.4 % of E, in a whole decay.
	patience = 1024
)

// tick is the time since the balancer began, in ticks.
func tick(d time.Duration) uint32 { return uint32(d >> tickShift) }

// decayTicks is D in ticks.
func decayTicks(d time.Duration) float64 { return float64(d) / (1 << tickShift) }

func pack(value float32, at uint32) uint64 { return uint64(at)<<32 | uint64(math.Float32bits(value)) }

// load returns E, and how long ago, in ticks, it was that. E is 0 if there was no
// sample.
func (e *estimate) load(now uint32) (value float32, age uint32) {
	word := e.word.Load()
	return math.Float32frombits(uint32(word)), since(now, uint32(word>>32))
}

// since is now − at, and 0 if at is late.
func since(now, at uint32) uint32 {
	return max(now+late-at, late) - late
}

func fade(age uint32, decay float64) float64 {
	if age == 0 {
		return 1
	}
	return math.Exp(-float64(age) / decay)
}

// lost is 1 − fade. Where little is lost, as nearly always, the series is as good
// as a float32 can tell.
func lost(age uint32, decay float64) float64 {
	x := float64(age) / decay
	if x < 1.0/64 {
		return x * (1 - x*(1.0/2-x*(1.0/6)))
	}
	return 1 - math.Exp(-x)
}

// record takes one sample, and reports whether it was the first. A latency of
// nothing counts as 1 ns: an estimate of 0 would cost nothing however many
// requests are in flight. One of more than a day counts as a day.
func (e *estimate) record(sample time.Duration, now uint32, decay float64) (first bool) {
	s := float32(min(max(sample, 1), longestSample))
	for {
		old := e.word.Load()
		value, at := math.Float32frombits(uint32(old)), uint32(old>>32)
		if value == 0 {
			at = now
		}
		age := since(now, at)
		at += age
		switch {
		case s > value:
			first, value = value == 0, s
		case age == 0:
			return false
		default:
			down := (float64(value) - float64(s)) * lost(age, decay)
			if down < step*float64(value) && float64(age) < decay/patience {
				return false
			}
			value = float32(float64(value) - down)
		}
		if e.word.CompareAndSwap(old, pack(value, at)) {
			return first
		}
	}
}
