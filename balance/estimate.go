package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// estimate is a moving average of the logarithms of latencies. E is its value in ns, and T is the
// time of the last sample. D is [Policy].Decay, and M is the median of the estimates of all
// endpoints:
//
//	read at t:        M + (E−M) · e^(−(t−T)/D), without changing E
//	sample s at t:    log E ← log E + w · (log s − log E), w = max(1/16, 1 − e^(−(t−T)/D)); T ← t
//
// Samples after the first one in a tick are ignored, except failures. A failure has w = 1. From a
// failure until its penalty ends, the minimum of w is 0 instead of 1/16. E then falls with time,
// and not faster with more samples. Otherwise the first endpoint that recovers from an outage of
// all endpoints would soon have the lowest E, and would get all requests.
//
// In tower's load::PeakEwma a longer latency replaces the average, so that one expensive request
// hides an endpoint for seconds. With logarithms, one outlier has little weight. The bits of a
// float32 approximate its logarithm, to 0.09 of a power of two.
//
// Value and time are in one word, so that no concurrent sample is lost:
//
//	bits 63..32  T, in ticks of 2^20 ns since the balancer began, modulo 52 days
//	bits 31..0   E, in ns, as a float32; 0 without a sample
type estimate struct{ word atomic.Uint64 }

const (
	tickShift = 20
	// maxLag is the largest number of ticks by which a sample may be older than the
	// previous one. With a larger difference, the sample would seem newer, because ticks
	// wrap around after 52 days.
	maxLag = 1 << 16
	// longestSample is the longest latency that is recorded. Longer latencies are recorded
	// as longestSample.
	longestSample = 24 * time.Hour

	sampleWeight    = 1.0 / 16 // the minimum weight of a sample
	failureWeight   = 1.0      // the weight of a failure, which replaces the estimate
	penalizedWeight = 0.0      // the minimum weight of a sample while there is a penalty
	// penalizedStep is the weight below which a sample may have no effect. If such a sample
	// does not change E, T stays too. Then the next sample has more weight, because its
	// weight grows with the time since T.
	penalizedStep = 1.0 / 1024
)

// tick converts a time since the start of the balancer to ticks of 2^20 ns, about 1 ms.
func tick(d time.Duration) uint32 { return uint32(d >> tickShift) }

// decayTicks converts a decay time to ticks.
func decayTicks(d time.Duration) float64 { return float64(d) / (1 << tickShift) }

func pack(value float32, at uint32) uint64 { return uint64(at)<<32 | uint64(math.Float32bits(value)) }

// load returns the value E in ns, and the age of E at the time now. The age and now are in
// ticks. The value is 0 without a sample.
func (e *estimate) load(now uint32) (value float32, age uint32) {
	word := e.word.Load()
	return math.Float32frombits(uint32(word)), since(now, uint32(word>>32))
}

// since returns the number of ticks from the tick in the argument at to the tick now. Ticks wrap
// around after 52 days. If the argument at is later by at most maxLag, since returns 0.
func since(now, at uint32) uint32 {
	return max(now+maxLag-at, maxLag) - maxLag
}

// record adds a sample to the estimate: the latency of a request that ended at the tick now.
// It limits the latency to the range from 1 ns to one day. It reports whether the sample was
// the first one. The argument decay is the time constant in ticks. least is the minimum
// weight of the sample. A sample with the weight failureWeight replaces the estimate.
func (e *estimate) record(sample time.Duration, now uint32, decay, least float64) (first bool) {
	s := float32(min(max(sample, 1), longestSample))
	for {
		old := e.word.Load()
		value, at := math.Float32frombits(uint32(old)), uint32(old>>32)
		first = value == 0
		if first {
			at = now
		}
		age := since(now, at)
		switch {
		case first:
			value = s
		case age == 0 && least != failureWeight:
			return false
		default:
			w := least
			if t := float64(age); t > w*decay { // 1 − e^(−t/decay) < t/decay
				w = max(w, 1-math.Exp(-t/decay))
			}
			logE, logS := int32(math.Float32bits(value)), int32(math.Float32bits(s))
			change := int32(float64(logS-logE) * w)
			if change == 0 && w < penalizedStep {
				return false // T stays, so that small changes add up
			}
			value = math.Float32frombits(uint32(logE + change))
		}
		if e.word.CompareAndSwap(old, pack(value, at+age)) {
			return first
		}
	}
}

// decayCurve is an approximation of e^(−age/decay) that is fast to compute.
type decayCurve struct {
	decay float64 // the time constant, in ticks
	fresh uint32  // the largest age, in ticks, for which slope and bend are used
	// slope and bend are the coefficients of an approximation for ages up to the field
	// fresh: 1 − e^(−age/decay) is about age · (slope − age · bend).
	slope, bend float32
}

// newDecayCurve returns the curve for a decay time in ticks.
func newDecayCurve(decay float64) decayCurve {
	const fresh, most = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	return decayCurve{decay, uint32(min(fresh/h, most)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// after returns the present value of a latency estimate, which has aged towards the median. The
// argument age is the time in ticks. The result left is the share of the old latency that remains,
// from 0 to 1. The error of this share is at most 2·10⁻⁴.
func (f *decayCurve) after(age, latency, median float32) (now, left float32) {
	if age <= float32(f.fresh) {
		decayed := age * (f.slope - age*f.bend)
		return latency - (latency-median)*decayed, 1 - decayed
	}
	left = float32(math.Exp(-float64(age) / f.decay))
	return latency*left + median*(1-left), left
}

// medianLatency is the weighted median of the estimates of a group. Old estimates age
// towards it. It is also the expected latency of an endpoint without samples.
//
// Newer estimates have more weight. Otherwise, if most endpoints fail and are avoided, their
// old estimates would keep the median high, and they would not be tried again. Penalties are
// excluded, because they are multiples of the median.
//
// A new sample updates the median if the last update is at least medianInterval ago. The
// update uses the estimates of the sampled endpoint and of up to 15 random others. In 95 %
// of cases, their median lies between the quartiles of all endpoints.
type medianLatency struct {
	word        atomic.Uint64 // the median in ns and the tick of its update, in the format of estimate
	measured    atomic.Bool   // whether an endpoint has had a sample
	failingLoad atomic.Uint32 // the bits of a float32: see failingLoadOf
}

const (
	medianSize     = 15
	medianInterval = 48   // ticks, about 50 ms
	firstLatency   = 30e6 // ns, of all endpoints before the first response
)

func (u *medianLatency) read() float32 { return math.Float32frombits(uint32(u.word.Load())) }

// knownLatency is the latency estimate of one endpoint that has samples, as an input of the median.
type knownLatency struct {
	latency, weight float32
	busy            int32 // requests in flight
	fails           bool
}

// refresh updates the median latency after a sample of e. It does so if the last update is at least
// medianInterval ago, or if isFirst is true: the sample is the first one of e. With more than
// medianSize endpoints, first samples cause at most one update per tick.
func (g *group) refresh(e *endpoint, now uint32, isFirst bool) {
	word := g.median.word.Load()
	age := since(now, uint32(word>>32))
	isNew := isFirst && (age > 0 || g.len() <= medianSize)
	if age < medianInterval && !isNew {
		return
	}
	var room [medianSize + 1]knownLatency
	known := g.appendKnown(room[:0], e, now)
	for i := range g.sets {
		r := g.sets[i].slots.Load()
		n := g.aperture.limit(int(r.n.Load()))
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
		if g.median.word.CompareAndSwap(word, pack(medianOf(known), now)) {
			g.aperture.narrow(known, g.len())
		}
	}
}

// appendKnown appends the latency estimate of e to known, aged until the tick now. If the estimate
// includes a penalty, the average of the latencies without penalties is used instead. If e has no
// sample, appendKnown returns known unchanged.
func (g *group) appendKnown(known []knownLatency, e *endpoint, now uint32) []knownLatency {
	value, age := e.latency.load(now)
	if value == 0 {
		return known
	}
	if e.isPenalized() {
		value = math.Float32frombits(e.unpenalized.Load())
	}
	aged, left := g.decayCurve.after(float32(age), value, g.median.read())
	waiting, streams := e.load()
	return append(known, knownLatency{aged, max(left, math.SmallestNonzeroFloat32), max(waiting, 0) + max(streams, 0), e.status.fails()})
}

// failingLoadOf returns the number of requests by which the cost of a failing endpoint is
// increased: 50, plus ten times the mean number of requests in flight at the other endpoints.
// Without this increase, an endpoint that fails fast would be the cheapest, because it has no
// requests in flight. The result is 0 if more than half of the endpoints are failing.
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

// medianOf returns the weighted median of the latencies in known. It sorts known.
func medianOf(known []knownLatency) float32 {
	slices.SortFunc(known, func(a, b knownLatency) int { return cmp.Compare(a.latency, b.latency) })
	var half float32
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
