package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// estimate is a peak EWMA of latencies. E is its value, T the time of the last sample,
// D the decay, and M the median of the estimates of all endpoints:
//
//	read at t:      M + (E−M) · e^(−(t−T)/D), without a change
//	sample s at t:  if s > E, and M or E ≥ minLatency:  E ← s  (the peak)
//	                else:                               w = e^(−(t−T)/D)
//	                                                    E ← E·w + s·(1−w)  (the average)
//	                T ← t
//
// Unlike in tower, a read does not write, and a value ages towards the median instead
// of 0. Peaks below minLatency are averaged, because otherwise one scheduling delay
// would keep requests away from a sub-millisecond endpoint for seconds.
//
// Value and time are in one word, so that no concurrent sample is lost:
//
//	bits 63..32  T, in ticks of 2^20 ns since the balancer began, modulo 52 days
//	bits 31..0   E, in ns, as a float32; 0 without a sample
//
// Within one tick the highest sample counts, or the first one if none is a peak. If a
// sample changes E by less than step, T is not updated for up to decay/moveWithin.
// Otherwise the change would be lost by rounding if the decay is long.
type estimate struct{ word atomic.Uint64 }

const (
	tickShift = 20
	// maxLag is the largest number of ticks by which a sample may be older than the
	// previous one. An older sample would seem to be 52 days late.
	maxLag = 1 << 16
	// step is the smallest relative decrease of E that is stored: 64 steps of a
	// float32, so that rounding changes a decrease by less than 1 %.
	step = 1.0 / (1 << 18)
	// longestSample is the longest latency that is recorded; longer ones count as this.
	longestSample = 24 * time.Hour
	// moveWithin divides the decay: T is updated after decay/moveWithin at the latest.
	// Until then less than step · 1024, 0.4 % of E, is lost.
	moveWithin = 1024
)

// tick converts a time since the start of the balancer to ticks.
func tick(d time.Duration) uint32 { return uint32(d >> tickShift) }

// decayTicks converts a decay to ticks.
func decayTicks(d time.Duration) float64 { return float64(d) / (1 << tickShift) }

func pack(value float32, at uint32) uint64 { return uint64(at)<<32 | uint64(math.Float32bits(value)) }

// load returns E and its age in ticks. E is 0 if there is no sample.
func (e *estimate) load(now uint32) (value float32, age uint32) {
	word := e.word.Load()
	return math.Float32frombits(uint32(word)), since(now, uint32(word>>32))
}

// since returns now − at in ticks, or 0 if at is later than now by up to maxLag.
func since(now, at uint32) uint32 {
	return max(now+maxLag-at, maxLag) - maxLag
}

func fade(age uint32, decay float64) float64 {
	if age == 0 {
		return 1
	}
	return math.Exp(-float64(age) / decay)
}

// decayed returns 1 − fade. For a small age it uses a series that is as exact as a float32.
func decayed(age uint32, decay float64) float64 {
	x := float64(age) / decay
	if x < 1.0/64 {
		return x * (1 - x*(1.0/2-x*(1.0/6)))
	}
	return 1 - math.Exp(-x)
}

// record adds a sample, limited to 1 ns to a day, and reports whether it was the first
// one. A peak is averaged if E is below floor.
func (e *estimate) record(sample time.Duration, now uint32, decay float64, floor float32) (first bool) {
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
		case value == 0, s > value && value >= floor:
			first, value = value == 0, s
		case age == 0:
			return false
		default:
			down := (float64(value) - float64(s)) * decayed(age, decay)
			if math.Abs(down) < step*float64(value) && float64(age) < decay/moveWithin {
				return false
			}
			value = float32(float64(value) - down)
		}
		if e.word.CompareAndSwap(old, pack(value, at)) {
			return first
		}
	}
}

// decayCurve is an approximation of e^(−age/decay) that is fast to compute.
type decayCurve struct {
	halvings float32 // number of halvings per tick
	fresh    uint32  // the largest age, in ticks, for which slope and bend are used
	// Up to fresh, 1 − e^(−age/decay) is about age · (slope − age · bend), the parabola through 0
	// with the smallest error.
	slope, bend float32
}

// newDecayCurve returns the curve for a decay in ticks.
func newDecayCurve(decay float64) decayCurve {
	const fresh, most = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	return decayCurve{float32(h), uint32(min(fresh/h, most)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// after returns a latency that has aged towards the median for age ticks, and the part
// of it that is left. The error is at most 2·10⁻⁴.
func (f *decayCurve) after(age, latency, median float32) (now, left float32) {
	if age <= float32(f.fresh) {
		decayed := age * (f.slope - age*f.bend)
		return latency - (latency-median)*decayed, 1 - decayed
	}
	left = exp2Neg(age * f.halvings)
	return latency*left + median*(1-left), left
}

// exp2Neg returns 2^(−x) for x ≥ 0. The error is at most 2·10⁻⁴. The whole part of x
// changes the exponent. A polynomial approximates the rest, −½ to ½. A float32 of the
// size of toWhole has no bits for a fraction, so adding it rounds x to a whole number.
func exp2Neg(x float32) float32 {
	const toWhole = 3 << 22
	if x >= 120 {
		return 0
	}
	whole := x + toWhole
	part := x - (whole - toWhole)
	p := 1 - part*(0.6933015-part*(0.2419323-part*0.0547488))
	return math.Float32frombits(math.Float32bits(p) - math.Float32bits(whole)<<23)
}

// medianLatency is the weighted median of the estimates of a group. Old estimates age
// towards it, and it is the expected latency of an endpoint without samples.
//
// Newer estimates have more weight. Otherwise, if most endpoints fail and are avoided,
// their old estimates would keep the median high, and they would not be tried again.
// Penalties are excluded, because they are multiples of the median.
//
// A sample updates the median if it is older than medianInterval. The update uses the
// endpoint of the sample and random others, 15 in total. Their median lies between the
// quartiles of all endpoints in 95 % of cases.
type medianLatency struct {
	word        atomic.Uint64 // in the format of estimate
	measured    atomic.Bool
	failingLoad atomic.Uint32 // the bits of a float32: see failingLoadOf
}

const (
	medianSize     = 15
	medianInterval = 48 // ticks, about 50 ms
)

func (u *medianLatency) init(d time.Duration) { u.word.Store(pack(float32(d), 0)) }

// known reports whether there has been a sample.
func (u *medianLatency) known() bool { return u.measured.Load() }

func (u *medianLatency) read() float32 { return math.Float32frombits(uint32(u.word.Load())) }

// knownLatency is the estimate of one endpoint that has samples.
type knownLatency struct {
	latency, weight float64
	busy            int32 // requests in flight
	fails           bool
}

// refresh updates the median if it is old or first is true. In a large group, first
// samples update it at most once per tick.
func (g *group) refresh(e *endpoint, now uint32, first bool) {
	word := g.median.word.Load()
	age := since(now, uint32(word>>32))
	isNew := first && (age > 0 || g.len() <= medianSize)
	if age < medianInterval && !isNew {
		return
	}
	var room [medianSize + 1]knownLatency
	known := g.appendKnown(room[:0], e, now)
	for i := range g.sets {
		r := g.sets[i].slots.Load()
		n := int(r.n.Load())
		if n == 0 {
			continue
		}
		w := newWalk(g.draw(), n)
		for range min(n, cap(known)-len(known)) {
			if other := r.at[w.next()].Load(); other != nil && other != e {
				known = g.appendKnown(known, other, now)
			}
		}
	}
	if len(known) > 0 {
		g.median.measured.Store(true)
		g.median.failingLoad.Store(math.Float32bits(failingLoadOf(known)))
		g.median.word.CompareAndSwap(word, pack(float32(medianOf(known)), now))
	}
}

// appendKnown appends the estimate of e, without penalties, to known. It appends
// nothing if e has no sample.
func (g *group) appendKnown(known []knownLatency, e *endpoint, now uint32) []knownLatency {
	value, age := e.latency.load(now)
	if value == 0 {
		return known
	}
	if e.isPenalized() {
		value = math.Float32frombits(e.unpenalized.Load())
	}
	w := max(fade(age, g.decay), math.SmallestNonzeroFloat32)
	median := float64(g.median.read())
	waiting, streams := e.load()
	return append(known, knownLatency{median + (float64(value)-median)*w, w, max(waiting, 0) + max(streams, 0), e.status.fails()})
}

// failingLoadOf returns the number of requests that count in addition at a failing
// endpoint: 50, plus ten times the mean number of requests in flight at the others.
// Otherwise an endpoint that fails fast would be the cheapest, because it has no
// requests in flight. The number is 0 if more than half of the endpoints are failing.
func failingLoadOf(known []knownLatency) float32 {
	const atLeast, times = 50, 10
	var busy, healthy int
	for _, o := range known {
		if !o.fails {
			healthy++
			busy += int(o.busy)
		}
	}
	if 2*healthy < len(known) {
		return 0
	}
	return atLeast + times*float32(busy)/float32(healthy)
}

// medianOf returns the weighted median of the estimates. It sorts known.
func medianOf(known []knownLatency) float64 {
	slices.SortFunc(known, func(a, b knownLatency) int { return cmp.Compare(a.latency, b.latency) })
	var half float64
	for _, o := range known {
		half += o.weight / 2
	}
	for _, o := range known {
		if half -= o.weight; half <= 0 {
			return o.latency
		}
	}
	return known[len(known)-1].latency
}
