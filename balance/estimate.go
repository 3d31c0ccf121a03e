package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// estimate is a peak EWMA of latencies. With E the value and T the time of the
// last sample, D the decay, and M the median of all endpoints' values now:
//
//	read at t:      M + (E−M) · e^(−(t−T)/D), and nothing changes
//	sample s at t:  if s > E, and M or E ≥ noise:  E ← s     (the peak)
//	                else:                          w = e^(−(t−T)/D)
//	                                               E ← E·w + s·(1−w)  (the average)
//	                T ← t
//
// Where M is below noise too, an estimate below noise averages peaks in, because one
// scheduling hiccup would otherwise keep requests from a sub-millisecond endpoint for
// many seconds. The latency of a failure always counts as a peak.
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
// A peak above a value below floor is averaged in.
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
			down := (float64(value) - float64(s)) * lost(age, decay)
			if math.Abs(down) < step*float64(value) && float64(age) < decay/patience {
				return false
			}
			value = float32(float64(value) - down)
		}
		if e.word.CompareAndSwap(old, pack(value, at)) {
			return first
		}
	}
}

// fading is how fast what is known of an endpoint becomes what is usual.
type fading struct {
	halvings float32 // a tick
	fresh    uint32  // in ticks
	// Of what is fresh, age · (slope − age · bend) is lost: of the parabolas with 0
	// at 0 the one whose greatest error is the least.
	slope, bend float32
}

// newFading returns that of a decay in ticks.
func newFading(decay float64) fading {
	const fresh, most = 0.375, 1 << 30 // halvings, ticks
	h := math.Log2E / decay
	return fading{float32(h), uint32(min(fresh/h, most)), float32(0.689955 * h), float32(0.212812 * h * h)}
}

// after is what remains of a latency at an age in ticks, and which part of it
// that is, to within 2·10⁻⁴. Estimates of endpoints in use are fresh, as a rule.
func (f *fading) after(age, latency, usual float32) (now, left float32) {
	if age <= float32(f.fresh) {
		lost := age * (f.slope - age*f.bend)
		return latency - (latency-usual)*lost, 1 - lost
	}
	left = halved(age * f.halvings)
	return latency*left + usual*(1-left), left
}

// halved returns 2^(−x) for x ≥ 0, to within 2·10⁻⁴: the power of two by its bits,
// what is left by a polynomial from −½ to ½, the least squares with 1 at 0, and
// twice as much at −½ as at ½. A float32 as large as toWhole has no bits for a
// fraction, and so the nearest whole number in its last ones.
func halved(x float32) float32 {
	const toWhole = 3 << 22
	if x >= 120 {
		return 0
	}
	whole := x + toWhole
	part := x - (whole - toWhole)
	p := 1 - part*(0.6933015-part*(0.2419323-part*0.0547488))
	return math.Float32frombits(math.Float32bits(p) - math.Float32bits(whole)<<23)
}

// usual is the latency that is usual among the endpoints of a group: the median
// of what is expected of those that are known. What is not known is expected to
// be like that, and what was known long ago becomes like that.
//
// Each counts by how fresh the knowledge is, so that it is the endpoints in use
// that say what is usual: else, where most fail and are avoided, what is known
// of them would never fade, and they would not be tried again.
//
// The price of failures is left out: it is a multiple of what is usual, and would
// become one of itself, until, where now and then a request fails, it was all
// that is known of any endpoint.
//
// It is taken anew by the first sample after a while, from the endpoint of the
// sample and a few that are drawn at random: it only has to be of the right
// size, and the median of 15 lies between the quartiles of all in 95 of 100
// cases.
type usual struct {
	word     atomic.Uint64 // as of estimate
	measured atomic.Bool
	asIf     atomic.Uint32 // the bits of a float32: see asIf
}

const (
	usualOf    = 15
	usualEvery = 48 // ticks, about 50 ms
)

func (u *usual) init(d time.Duration) { u.word.Store(pack(float32(d), 0)) }

// known reports whether there was a sample.
func (u *usual) known() bool { return u.measured.Load() }

func (u *usual) read() float32 { return math.Float32frombits(uint32(u.word.Load())) }

// opinion is what one endpoint says is usual.
type opinion struct {
	latency, weight float64
	busy            int32 // requests that it has
	fails           bool
}

// refresh takes the median anew if it is old, or if now is the first time that
// something is known of e; of many endpoints, of one in a tick.
func (g *group) refresh(e *endpoint, now uint32, first bool) {
	word := g.usual.word.Load()
	age := since(now, uint32(word>>32))
	news := first && (age > 0 || g.len() <= usualOf)
	if age < usualEvery && !news {
		return
	}
	var room [usualOf + 1]opinion
	heard := g.hear(room[:0], e, now)
	for i := range g.sets {
		r := g.sets[i].slots.Load()
		n := int(r.n.Load())
		if n == 0 {
			continue
		}
		w := newWalk(g.draw(), n)
		for range min(n, cap(heard)-len(heard)) {
			if other := r.at[w.next()].Load(); other != nil && other != e {
				heard = g.hear(heard, other, now)
			}
		}
	}
	if len(heard) > 0 {
		g.usual.measured.Store(true)
		g.usual.asIf.Store(math.Float32bits(asIf(heard)))
		g.usual.word.CompareAndSwap(word, pack(float32(median(heard)), now))
	}
}

// hear adds what is expected of e, but for the price of failures, if it is known.
func (g *group) hear(heard []opinion, e *endpoint, now uint32) []opinion {
	value, age := e.latency.load(now)
	if value == 0 {
		return heard
	}
	if e.isFined() {
		value = math.Float32frombits(e.fined.Load())
	}
	w := max(fade(age, g.decay), math.SmallestNonzeroFloat32)
	usual := float64(g.usual.read())
	waiting, streams := e.load()
	return append(heard, opinion{usual + (float64(value)-usual)*w, w, max(waiting, 0) + max(streams, 0), e.status.fails()})
}

// asIf is how many requests wait at an endpoint that is failing, as far as its
// cost goes: some, and several times as many as one that is not has, with those
// whose response goes on. What fails at once has none of either, and would be the
// cheapest by that where its peers have many, or where the penalty is not much
// more than what is usual, because they are slow or fail now and then themselves.
// Where more than half are failing it is not for the endpoints to blame, and
// nothing is added.
func asIf(heard []opinion) float32 {
	const atLeast, times = 50, 10
	var busy, well int
	for _, o := range heard {
		if !o.fails {
			well++
			busy += int(o.busy)
		}
	}
	if 2*well < len(heard) {
		return 0
	}
	return atLeast + times*float32(busy)/float32(well)
}

// median returns the least latency such that what is up to it has half of the
// weight.
func median(heard []opinion) float64 {
	slices.SortFunc(heard, func(a, b opinion) int { return cmp.Compare(a.latency, b.latency) })
	var half float64
	for _, o := range heard {
		half += o.weight / 2
	}
	for _, o := range heard {
		if half -= o.weight; half <= 0 {
			return o.latency
		}
	}
	return heard[len(heard)-1].latency
}
