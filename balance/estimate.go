package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// estimate is a moving average of the logarithms of latencies. E is its value in ns, T is when it was
// last sampled, D is [Policy].Decay, and M is the median over all endpoints' estimates:
//
//	read at t:        M + (E−M) · e^(−(t−T)/D), without changing E
//	sample s at t:    log E ← log E + w · (log s − log E), w = max(1/12, 1 − e^(−(t−T)/D)); T ← t
//
// Samples after the first one in a tick are ignored. With little traffic, D is longer: see group.pace.
//
// In tower's load::PeakEwma a longer latency replaces the average, so that one expensive request hides
// an endpoint for seconds. With logarithms, one outlier carries little weight. The bits of a float32
// approximate its logarithm, to 0.09 of a power of two.
//
// Value and time are in one word, so that no concurrent sample is lost:
//
//	bits 63..32  T, in ticks of 2^20 ns since the balancer began, modulo 52 days
//	bits 31..0   E, in ns, as a float32; 0 without a sample
type estimate struct{ word atomic.Uint64 }

// The format and the weights of an estimate.
const (
	tickShift = 20
	// maxLag is the largest number of ticks by which a sample may be older than the
	// previous one. With a larger difference, the sample would seem newer, because ticks
	// wrap around after 52 days.
	maxLag = 1 << 16
	// longestSample is the longest latency that is recorded. Longer latencies are recorded
	// as longestSample.
	longestSample = 24 * time.Hour

	sampleWeight = 1.0 / 12 // the minimum weight of a sample
	// earlyWeight is the minimum weight for a sample that is shorter than the estimate, while the
	// endpoint has few samples. The first samples may be slow, because they include connecting.
	earlyWeight = 1.0 / 2
)

// tick converts a time since the balancer's start to ticks of 2^20 ns, about 1 ms.
func tick(d time.Duration) uint32 { return uint32(d >> tickShift) }

// decayTicks converts a decay time to ticks.
func decayTicks(d time.Duration) float64 { return float64(d) / (1 << tickShift) }

// pack returns the word of an estimate with the given value and time.
func pack(value float32, t uint32) uint64 { return uint64(t)<<32 | uint64(math.Float32bits(value)) }

// load returns the estimate E in ns, and its age at the time now; both times are in ticks. E is 0 if
// there was no sample.
func (e *estimate) load(now uint32) (value float32, age uint32) {
	// The word is read once, so that value and time belong together.
	word := e.word.Load()
	return math.Float32frombits(uint32(word)), since(now, uint32(word>>32))
}

// since returns the number of ticks from t to now. It also works when ticks wrap around after 52 days.
// If t is a little later than now (up to maxLag), because of concurrent calls, it returns 0.
func since(now, t uint32) uint32 {
	// The offset makes small negative differences positive before the unsigned subtraction is cut off at 0.
	return max(now+maxLag-t, maxLag) - maxLag
}

// record adds a sample to the estimate: the latency of a request that ended at the tick now, clamped to
// the range from 1 ns to one day. decay is the time constant in ticks. minWeight is the least weight of
// the sample if it is shorter than the estimate. record reports whether the sample was the first one.
// For the formula see estimate.
func (e *estimate) record(sample time.Duration, now uint32, decay, minWeight float64) (first bool) {
	s := float32(min(max(sample, 1), longestSample))
	for {
		old := e.word.Load()
		value := math.Float32frombits(uint32(old))
		last := uint32(old >> 32)
		first = value == 0
		if first {
			// Without an earlier sample there is no age.
			last = now
		}
		age := since(now, last)
		switch {
		case first:
			value = s
		case age == 0: // one sample per tick is enough
			return false
		default:
			w := sampleWeight
			if s < value {
				w = minWeight
			}
			// The exponential is computed only if it can exceed the least weight.
			if t := float64(age); t > w*decay { // 1 − e^(−t/decay) < t/decay
				w = max(w, 1-math.Exp(-t/decay))
			}
			logE := int32(math.Float32bits(value)) // the bits of a float32 grow like its logarithm
			logS := int32(math.Float32bits(s))
			value = math.Float32frombits(uint32(logE + int32(float64(logS-logE)*w)))
		}
		// Another sample may have been recorded meanwhile. Then this one is added to its result.
		if e.word.CompareAndSwap(old, pack(value, last+age)) {
			return first
		}
	}
}

// restore raises E to the given value if it is lower. It undoes a sample of a response that began fast
// and then failed. 0 means no value.
func (e *estimate) restore(value float32) {
	for {
		old := e.word.Load()
		if math.Float32frombits(uint32(old)) >= value || e.word.CompareAndSwap(old, pack(value, uint32(old>>32))) {
			return
		}
	}
}

// decayCurve computes e^(−age/decay), approximately and fast, because each pick needs it for each
// endpoint.
type decayCurve struct {
	decay float64 // the time constant, in ticks
	fresh uint32  // the largest age, in ticks, for which slope and bend are used
	// slope and bend are the coefficients of an approximation for ages up to the field
	// fresh: 1 − e^(−age/decay) is about age · (slope − age · bend).
	slope, bend float32
}

// newDecayCurve returns the curve for a decay time in ticks.
func newDecayCurve(decay float64) decayCurve {
	// fresh is the largest age for the quadratic approximation, as a number of halvings of the remaining share.
	const fresh, longest = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	// 0.689955 and 0.212812 fit 1 − 2^(−x) for x up to fresh.
	return decayCurve{decay, uint32(min(fresh/h, longest)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// apply returns the present value of a latency that has aged towards the median for age ticks, and the
// share of the old latency that remains in it, 0 to 1. The error of the share is at most 2·10⁻⁴.
func (f *decayCurve) apply(age, latency, median float32) (now, remaining float32) {
	// The polynomial is much faster than Exp, and exact enough for recent samples.
	if age <= float32(f.fresh) {
		decayed := age * (f.slope - age*f.bend)
		return latency - (latency-median)*decayed, 1 - decayed
	}
	remaining = float32(math.Exp(-float64(age) / f.decay))
	return latency*remaining + median*(1-remaining), remaining
}

// medianLatency is the weighted median of a group's estimates. Old estimates age towards it, and
// it stands in for endpoints without samples.
//
// Newer estimates carry more weight. Otherwise, if most endpoints are avoided, their old
// estimates would keep the median high, and they would not be tried again.
//
// A new sample updates the median if the last update is at least medianInterval ago. The update
// uses the estimates of the sampled endpoint and up to 15 random others. In 95 % of cases, their
// median lies between the quartiles of all endpoints.
type medianLatency struct {
	word     atomic.Uint64 // the median in ns and the tick of its update, in the format of estimate
	measured atomic.Bool   // whether an endpoint has had a sample
}

// The parameters of a medianLatency.
const (
	medianSize     = 15
	medianInterval = 48   // ticks, about 50 ms
	firstLatency   = 30e6 // ns, of all endpoints before the first response
)

// read returns the median in ns.
func (u *medianLatency) read() float32 { return math.Float32frombits(uint32(u.word.Load())) }

// knownLatency describes an endpoint for refresh: its aged latency with a weight, for the median, and
// its load and failures, for the figures in peers.
type knownLatency struct {
	latency, weight float32
	busy, streams   int32 // requests in flight, and the responses in progress among them
	errorRate       float32
	missRate        float32 // of missed deadlines
	missed          uint32  // consecutive missed deadlines
	doubted         bool    // by the level of its failures, see doubt
}

// peers holds the figures with which an endpoint's failures are compared. They are updated along
// with the median latency. Each is the lower quartile of the same endpoints, so that up to three
// quarters of them may be worse than usual.
type peers struct {
	load, errors, misses atomic.Uint32 // the bits of a float32: see failingLoad, errorRate and missRate
	streams              atomic.Uint32 // the bits of a float32: see streamShare
	missed               atomic.Uint32 // consecutive missed deadlines
	strain               atomic.Uint32 // the bits of a float32: see strained
}

// failingLoad returns how many requests in flight a doubted endpoint's cost counts in addition to its
// real ones, or 0 while most endpoints are doubted: see failingLoadOf, whose last result update has stored.
func (p *peers) failingLoad() float32 { return math.Float32frombits(p.load.Load()) }

// streamShare returns the weight of a response in progress in an endpoint's cost. It is 1 while the
// endpoints have up to eight of them on average, and eight divided by that average otherwise. With a
// constant weight, many streams that rarely end would determine the costs, and the endpoint with
// the fewest streams would get all other requests.
func (p *peers) streamShare() float32 { return 1 - math.Float32frombits(p.streams.Load()) }

// errorRate returns the usual error rate of an endpoint.
func (p *peers) errorRate() float32 { return math.Float32frombits(p.errors.Load()) }

// missRate returns the rate at which an endpoint usually misses deadlines.
func (p *peers) missRate() float32 { return math.Float32frombits(p.misses.Load()) }

// strained reports whether the endpoints fail, or miss deadlines, so often that they cannot serve the
// requests of others.
func (p *peers) strained() bool { return math.Float32frombits(p.strain.Load()) > strainedRate }

// strainedRate is the usual rate of errors, or the median rate of missed deadlines, above which the endpoints
// count as strained.
const strainedRate = 0.1

// update computes the figures from a sample of the endpoints.
func (p *peers) update(latencies []knownLatency) {
	p.load.Store(math.Float32bits(failingLoadOf(latencies)))
	const fullStreams = 8
	// The mean number of responses in progress per endpoint.
	streams := float32(0)
	for _, k := range latencies {
		streams += float32(k.streams) / float32(len(latencies))
	}
	// Stored as 1 − share, so that the zero value means a share of 1.
	p.streams.Store(math.Float32bits(1 - fullStreams/max(streams, fullStreams)))
	var room [medianSize + 1]uint32
	// quantile returns the value below which one of so many parts of the endpoints lie. The order of the bits of
	// non-negative floats is that of their values.
	quantile := func(value func(knownLatency) uint32, parts int) uint32 {
		values := room[:0]
		for _, k := range latencies {
			values = append(values, value(k))
		}
		slices.Sort(values)
		return values[(len(values)-1)/parts]
	}
	errorRate := func(k knownLatency) uint32 { return math.Float32bits(k.errorRate) }
	missRate := func(k knownLatency) uint32 { return math.Float32bits(k.missRate) }
	p.errors.Store(quantile(errorRate, 4))
	p.misses.Store(quantile(missRate, 4))
	p.missed.Store(quantile(func(k knownLatency) uint32 { return k.missed }, 4))
	// The endpoints are strained if the usual error rate is high, or if half of them miss deadlines.
	p.strain.Store(max(p.errors.Load(), quantile(missRate, 2)))
}

// refresh recomputes the median latency and the figures in peers after a sample of e, but only if that
// was last done at least medianInterval ago, because it reads several endpoints. If isFirst is true, e
// had no sample before, and refresh does not wait so long. With more than medianSize endpoints, first
// samples cause at most one update per tick.
func (g *group) refresh(e *endpoint, now uint32, isFirst bool) {
	word := g.median.word.Load()
	age := since(now, uint32(word>>32)) // of the median
	// A first sample should count at once, unless many endpoints get theirs at the same time.
	isNew := isFirst && (age > 0 || g.len() <= medianSize)
	if age < medianInterval && !isNew {
		return
	}
	var buffer [medianSize + 1]knownLatency
	latencies := g.appendKnown(buffer[:0], e, now)
	for i := range g.sets { // add up to medianSize random others
		r := g.sets[i].slots.Load()
		// Only endpoints in the aperture get requests, so others have no recent samples.
		n := g.aperture.limit(int(r.n.Load()))
		if n == 0 {
			continue
		}
		w := newWalk(g.draw(), n)
		for range min(n, cap(latencies)-len(latencies)) {
			if peer := r.endpoints[w.next()].Load(); peer != nil && peer != e {
				latencies = g.appendKnown(latencies, peer, now)
			}
		}
	}
	if len(latencies) > 0 {
		g.median.measured.Store(true)
		g.peers.update(latencies)
		g.pace(age)
		if g.median.word.CompareAndSwap(word, pack(medianOf(latencies), now)) { // only one of several concurrent calls succeeds
			g.aperture.narrow(latencies, g.len())
		}
	}
}

// appendKnown appends e's estimate to latencies, aged until the tick now. If e was never sampled,
// it returns latencies unchanged.
func (g *group) appendKnown(latencies []knownLatency, e *endpoint, now uint32) []knownLatency {
	value, age := e.latency.load(now)
	if value == 0 {
		return latencies
	}
	p := g.params.Load()
	// remaining, the share of the estimate that has not faded, is its weight in the median.
	aged, remaining := p.curve.apply(float32(age), value, g.median.read())
	waiting, streams := e.load()
	return append(latencies, knownLatency{
		latency: aged, weight: max(remaining, math.SmallestNonzeroFloat32), busy: max(waiting, 0) + max(streams, 0),
		streams:   max(streams, 0),
		errorRate: e.errorRate(now, p), missRate: e.misses.rate(e.picks()), missed: e.missed.Load(), doubted: e.level.Load() > 0,
	})
}

// pace adapts the decay of latencies to the traffic. With little traffic, they decay more slowly, so
// that they last for at least three visits to an endpoint; otherwise an endpoint that was slow would be
// forgotten before it gets its next request. age is the time since the last call, in ticks.
func (g *group) pace(age uint32) {
	const visits, longest = 3, 1 << 26 // 19 hours
	p := g.params.Load()
	decay := p.decay
	if age > 2*medianInterval { // fewer than ten requests per second
		decay = min(max(decay, visits*float64(age)*float64(g.examines())), longest)
	}
	// One long pause is not little traffic. Therefore the decay grows by a quarter at most.
	decay = min(max(decay, p.curve.decay*3/4), p.curve.decay*5/4)
	if decay != p.curve.decay {
		next := *p
		next.curve = newDecayCurve(decay)
		g.params.CompareAndSwap(p, &next)
	}
}

// failingLoadOf returns how many requests in flight are added to a doubted endpoint in its cost: 50,
// plus ten times the mean at other endpoints. Without that, an endpoint that fails fast would look
// cheap, because nothing is in flight there. It returns 0 if more than half of the endpoints are
// doubted, because then there may be no better ones.
func failingLoadOf(latencies []knownLatency) float32 {
	// The load at least, and as a multiple of the mean of the healthy endpoints.
	const atLeast, times = 50, 10
	var busy, healthy int
	for _, k := range latencies {
		if !k.doubted {
			healthy++
			busy += int(k.busy)
		}
	}
	// With most endpoints doubted, the mean of the others says little.
	if 2*healthy < len(latencies) {
		return 0
	}
	return atLeast + times*float32(busy)/float32(healthy)
}

// medianOf returns the weighted median of latencies, and sorts them by latency.
func medianOf(latencies []knownLatency) float32 {
	slices.SortFunc(latencies, func(a, b knownLatency) int { return cmp.Compare(a.latency, b.latency) })
	// The median is where the weights of the lower latencies reach half of all weights.
	var half float32
	for _, k := range latencies {
		half += k.weight / 2
	}
	for _, k := range latencies {
		if half -= k.weight; half <= 0 {
			return k.latency
		}
	}
	return latencies[len(latencies)-1].latency
}
