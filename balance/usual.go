package balance

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

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
