package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// estimate is a peak EWMA of latencies. With E the value and T the time of the last
// sample, D the decay, and M the median of the estimates of all endpoints:
//
//	read at t:      M + (E−M) · e^(−(t−T)/D), without a change
//	sample s at t:  if s > E, and M or E ≥ minLatency:  E ← s  (the peak)
//	                else:                               w = e^(−(t−T)/D)
//	                                                    E ← E·w + s·(1−w)  (the average)
//	                T ← t
//
// In contrast to tower a read does not write, and a value ages towards the median instead
// of 0. Peaks below minLatency are averaged, because one scheduling hiccup would otherwise
// keep requests from a sub-millisecond endpoint for many seconds.
//
// Value and time are one word, so that no concurrent sample is lost:
//
//	bits 63..32  T, in ticks of 2^20 ns since the balancer began, modulo 52 days
//	bits 31..0   E, in ns, as a float32; 0 without a sample
//
// Within one tick the highest sample counts, or the first one if none is a peak. A sample
// that moves E by less than a step leaves T for up to a part of the decay, because
// otherwise rounding would stop a long decay.
type estimate struct{ word atomic.Uint64 }

const (
	tickShift = 20
	// maxLag is how many ticks a sample may be older than one that was stored before it.
	// Without it such a sample would seem 52 days late.
	maxLag = 1 << 16
	// step is the least relative decrease of E: 64 steps of a float32, so that rounding
	// changes a decrease by less than 1 %.
	step = 1.0 / (1 << 18)
	// longestSample is the greatest latency of a sample.
	longestSample = 24 * time.Hour
	// moveWithin is the part of the decay after which T moves. Until then less than step
	// · 1024, 0.4 % of E, is lost.
	moveWithin = 1024
)

// tick converts a time since the balancer began.
func tick(d time.Duration) uint32 { return uint32(d >> tickShift) }

// decayTicks returns D in ticks.
func decayTicks(d time.Duration) float64 { return float64(d) / (1 << tickShift) }

func pack(value float32, at uint32) uint64 { return uint64(at)<<32 | uint64(math.Float32bits(value)) }

// load returns E and its age in ticks. E is 0 without a sample.
func (e *estimate) load(now uint32) (value float32, age uint32) {
	word := e.word.Load()
	return math.Float32frombits(uint32(word)), since(now, uint32(word>>32))
}

// since returns now − at, or 0 if at is later by up to maxLag.
func since(now, at uint32) uint32 {
	return max(now+maxLag-at, maxLag) - maxLag
}

func fade(age uint32, decay float64) float64 {
	if age == 0 {
		return 1
	}
	return math.Exp(-float64(age) / decay)
}

// decayed returns 1 − fade. For a small age, the usual case, it is a series that is as
// exact as a float32.
func decayed(age uint32, decay float64) float64 {
	x := float64(age) / decay
	if x < 1.0/64 {
		return x * (1 - x*(1.0/2-x*(1.0/6)))
	}
	return 1 - math.Exp(-x)
}

// record adds a sample, from 1 ns to a day, and reports whether it was the first. If the
// value is below floor, a peak is averaged.
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

// decayCurve approximates e^(−age/decay).
type decayCurve struct {
	halvings float32 // per tick
	fresh    uint32  // in ticks
	// Up to fresh, 1 − e^(−age/decay) is age · (slope − age · bend): the parabola through
	// 0 with the least greatest error.
	slope, bend float32
}

// newDecayCurve returns the curve of a decay in ticks.
func newDecayCurve(decay float64) decayCurve {
	const fresh, most = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	return decayCurve{float32(h), uint32(min(fresh/h, most)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// after returns a latency of an age in ticks, aged towards the median, and the part of it
// that is left, to within 2·10⁻⁴.
func (f *decayCurve) after(age, latency, median float32) (now, left float32) {
	if age <= float32(f.fresh) {
		decayed := age * (f.slope - age*f.bend)
		return latency - (latency-median)*decayed, 1 - decayed
	}
	left = exp2Neg(age * f.halvings)
	return latency*left + median*(1-left), left
}

// exp2Neg returns 2^(−x) for x ≥ 0, to within 2·10⁻⁴: the whole part by the exponent, the
// rest from −½ to ½ by a least-squares polynomial. A float32 as large as toWhole has no
// bits for a fraction, and so the nearest whole number in its last bits.
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

// medianLatency is the weighted median of the estimates of a group. An endpoint without
// samples costs as much, and old estimates age towards it.
//
// Fresh estimates have more weight. Otherwise, where most endpoints fail and are avoided,
// their estimates would keep the median high, and they would not be tried again.
// Penalties are left out, because they are multiples of the median.
//
// After medianInterval a sample updates it, from the endpoint of the sample and others
// drawn at random. The median of 15 lies between the quartiles of all in 95 % of cases.
type medianLatency struct {
	word        atomic.Uint64 // as in estimate
	measured    atomic.Bool
	failingLoad atomic.Uint32 // bits of a float32: see failingLoadOf
}

const (
	medianSize     = 15
	medianInterval = 48 // ticks, about 50 ms
)

func (u *medianLatency) init(d time.Duration) { u.word.Store(pack(float32(d), 0)) }

// known reports whether there was a sample.
func (u *medianLatency) known() bool { return u.measured.Load() }

func (u *medianLatency) read() float32 { return math.Float32frombits(uint32(u.word.Load())) }

// knownLatency is the estimate of one endpoint.
type knownLatency struct {
	latency, weight float64
	busy            int32 // requests in flight
	fails           bool
}

// refresh updates the median if it is old, or after the first sample of an endpoint. In a
// large group first samples update it once in a tick.
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

// appendKnown appends the estimate of e without penalties, if there is one.
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

// failingLoadOf returns how many requests count in addition at a failing endpoint: 50,
// and ten times as many as the others have in flight. An endpoint that fails fast has
// none in flight and would be the cheapest otherwise. It is 0 if more than half of the
// endpoints are failing.
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

// medianOf returns the least latency up to which the estimates have half of the weight.
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
