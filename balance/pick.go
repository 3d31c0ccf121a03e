package balance

import (
	"fmt"
	"math"
	"time"
)

// Picker is a rule that chooses among the ready endpoints. The zero value is the
// default: the cheapest of all where there are at most sixteen, else of five.
//
// Two choices, the habit of the trade, give an endpoint at most 2/n of the
// requests and at least C(k,2)/C(n,2) of them to the k slowest: where capacities
// differ, half of the requests can be late that need not be. Five come within a
// few per cent of the best that is possible, and for a few endpoints looking at
// all costs no more. SIMULATION.md has the figures.
type Picker struct {
	name  string
	start func(g *group) picker
}

// picker is a Picker at work for one balancer. It may be asked while the set
// changes, and returns nil then, or if there is nothing to choose from. What
// changes are made to the set, joined and left tell under the balancer's mutex.
type picker interface {
	pick(q query) *endpoint
	joined(e *endpoint)
	left(e *endpoint)
}

const (
	scanned    = 16 // endpoints of which the default looks at all
	someOf     = 5  // those that it looks at where there are more
	maxChoices = 64
)

// PowerOfChoices takes the cheapest of k endpoints that are drawn at random, all
// different, from 1 to 64; what is below or above is taken as that.
func PowerOfChoices(k int) Picker {
	k = min(max(k, 1), maxChoices)
	return Picker{fmt.Sprintf("cheapest of %d", k), func(g *group) picker { return choices{group: g, few: k, k: k} }}
}

// FullScan takes the cheapest of all: the best there is, at a cost that grows with
// the number of endpoints.
func FullScan() Picker {
	return Picker{"cheapest of all", func(g *group) picker { return choices{group: g, few: math.MaxInt, k: 1} }}
}

// String describes the rule.
func (p Picker) String() string {
	if p.start == nil {
		return fmt.Sprintf("cheapest of %d, of all up to %d", someOf, scanned)
	}
	return p.name
}

func (p Picker) on(g *group) picker {
	if p.start == nil {
		return choices{group: g, few: scanned, k: someOf}
	}
	return p.start(g)
}

// choices looks at all endpoints where they are few, else at k.
type choices struct {
	*group
	few, k int
}

func (choices) joined(*endpoint) {}
func (choices) left(*endpoint)   {}

// pick prefers the near endpoints to the far ones, unless these are cheaper by
// more than the journey is worth, or the request has been to the near ones.
func (c choices) pick(q query) *endpoint {
	if q.tries == nil && q.why == nil && c.isEven() && c.sets[far].len() == 0 {
		return c.amongPlain(&c.sets[near], q.now).best
	}
	here, cost := c.among(&c.sets[near], q)
	if c.sets[far].len() == 0 {
		return here
	}
	there, farCost := c.among(&c.sets[far], q)
	switch again := q.tries.Has(here); {
	case here == nil:
		return there
	case there == nil:
		return here
	case again != q.tries.Has(there):
		if again {
			return there
		}
		return here
	case farCost*c.farther < cost:
		return there
	}
	return here
}

// isEven reports whether all endpoints weigh the same, by the usual cost.
func (g *group) isEven() bool { return g.cost.of == nil && !g.weighted.Load() }

// amongPlain is among where that is so, for a request that was not sent before
// and of which nobody asks why.
func (c choices) amongPlain(r *readySet, now uint32) found {
	s, random := r.slots.Load(), c.draw()
	if all := s.all.Load(); all != nil && len(*all) <= c.few {
		return c.cheapestOf(*all, now, none(chanceOf(random)))
	}
	k, w := c.walk(int(s.n.Load()), random)
	return c.cheapestPlain(s, w, k, now, chanceOf(random))
}

// walk is how to look at as many of n endpoints as are to be looked at.
func (c choices) walk(n int, random uint64) (k int, w walk) {
	k, w = min(c.k, n), newWalk(random, n)
	if n <= c.few {
		k, w.stride = n, 1 // of all, the order does not matter, and this one can be foreseen
	}
	return k, w
}

// among lets some endpoints of a set compete: all if they are few, else k.
func (c choices) among(r *readySet, q query) (best *endpoint, cost float32) {
	if q.why == nil && q.tries.Len() == 0 && c.isEven() {
		f := c.amongPlain(r, q.now)
		return f.best, math.Float32frombits(f.least)
	}
	s, random := r.slots.Load(), c.draw()
	n := int(s.n.Load())
	k, w := c.walk(n, random)
	if q.tries.Len() > 0 {
		if best, cost = c.cheapest(s, w, max(k, min(n, maxWalk)), k, q, chanceOf(random)); best != nil {
			return best, cost
		}
		q.tries = nil
	}
	return c.cheapest(s, w, k, k, q, chanceOf(random))
}

// maxWalk bounds how many endpoints are looked at for a request that was sent
// before. Few requests are sent more than three times, so that it has been to
// all of sixteen only where there are hardly more.
const maxWalk = 16

// cheapest walks along up to far endpoints, until it has looked at k of them
// where the request has not been, and returns the one that costs least for its
// weight.
func (g *group) cheapest(s *slots, w walk, far, k int, q query, chance uint32) (best *endpoint, cost float32) {
	t := contest{group: g, query: q, usual: g.usual.read(), weighted: g.weighted.Load(), chance: chance}
	tried := q.tries.Len() > 0
	for ; far > 0 && k > 0; far-- {
		e := s.at[w.next()].Load()
		if e == nil {
			continue
		}
		if tried && q.tries.Has(e) {
			q.why.look(g, e, q.now)
			continue
		}
		t.enter(e)
		k--
	}
	return t.result()
}

// contest finds the cheapest of the endpoints that enter, whatever is asked of
// it: weights, a cost of one's own, why.
type contest struct {
	*group
	query

	usual    float32
	weighted bool
	chance   uint32

	best     *endpoint
	cost     float32
	weight   float32
	inFlight uint64
	equals   float32 // the weight of all that were as good, the best included
}

// alike is by how much the costs of two endpoints with as many requests in
// flight may differ without telling anything: what is expected of two that are
// equal differs by as much, after the last few peaks.
const alike = 1.5

// enter compares e with the best so far. Where weights differ, of those that are
// alike each is as likely as its weight says, whatever the order; where they do
// not, costOf sees to that.
func (t *contest) enter(e *endpoint) {
	t.chance = nextChance(t.chance)
	itself := onePart(t.chance)
	at, share := itself-1, float32(1)
	if t.weighted {
		itself, share = 1, t.group.weight(e, t.now)
	}
	its, busy := t.costOf(e, t.now, t.usual, itself), e.inFlight()
	if t.why != nil {
		t.why.saw(e, reading{its, busy, share, its >= dear})
	}
	switch {
	case t.best == nil:
	case t.weighted && busy == t.inFlight && its < t.cost*alike && t.cost < its*alike:
		t.equals += share
		if at*t.equals < share {
			t.best, t.cost, t.weight = e, its, share
		}
		return
	case its*t.weight >= t.cost*share: // its/share ≥ cost/weight, without dividing
		return
	}
	t.best, t.cost, t.weight, t.inFlight, t.equals = e, its, share, busy, share
}

// result is the best, and what it costs for its weight.
func (t *contest) result() (*endpoint, float32) {
	return t.best, t.cost / max(t.weight, math.SmallestNonzeroFloat32)
}

// chanceOf is what is left to chance of a number that says where to look as well:
// its halves say so each, and this neither.
func chanceOf(random uint64) uint32 { return uint32(random>>32) ^ uint32(random) }

// nextChance is a step of the generator of Numerical Recipes: what one random
// number can still give, in its upper bits.
func nextChance(c uint32) uint32 { return c*1664525 + 1013904223 }

// onePart is a number from 1 to 2: the bits of a float32 above its exponent's.
func onePart(chance uint32) float32 { return math.Float32frombits(chance>>9 | 127<<23) }

// Cost says what one more request would cost at an endpoint; the cheapest gets
// it. The zero value is [PeakEWMA].
type Cost struct {
	name string
	of   func(Load) float64 // nil: peak EWMA
}

// Load is what is known of an endpoint when it is looked at.
type Load struct {
	InFlight  int           // requests that it has now
	Streaming int           // of these, the ones whose response goes on: their latency was taken
	Latency   time.Duration // what is expected of it, by the peak EWMA
}

// PeakEWMA is the latency that is expected, by a moving average that jumps to
// its peaks, times the requests that would then wait for their response; each
// response that goes on counts as what is usual. It is the default: it knows a
// slow endpoint without waiting for requests to pile up there, and one that has
// many. Latencies below 1 ms cost 1 ms, because their differences are noise.
func PeakEWMA() Cost { return Cost{} }

// LeastRequest is the requests that would then be in flight, whatever they take: the
// least-request rule. It suits requests of which some take far longer than
// others through no fault of the endpoint.
func LeastRequest() Cost {
	return CostOf("pending", func(l Load) float64 { return float64(l.InFlight + 1) })
}

// CostOf is a cost of one's own. The function is called for every endpoint that
// is looked at, by many goroutines; it returns a number above 0, and should
// allocate nothing. The name is for [Balancer.Describe]. A nil function panics.
func CostOf(name string, of func(Load) float64) Cost {
	if of == nil {
		panic("balance: nil cost function")
	}
	return Cost{name: name, of: of}
}

// String returns the name.
func (c Cost) String() string {
	if c.of == nil {
		return "peak ewma"
	}
	return c.name
}

// Nearly every pick is among endpoints that weigh the same, by the usual cost,
// and nobody asks why. What a contest says of them is said here with as little as
// possible.
//
// First those are found who are looked at, and then what each costs, so that
// their lines are fetched side by side: with many endpoints a pick takes as long
// as it waits for memory. Costs are compared by their bits, which have the same
// order, so that a processor need not foresee which one is less.

// sideBySide is how many lines are fetched at a time.
const sideBySide = 8

// found is the cheapest of some endpoints.
type found struct {
	best   *endpoint
	least  uint32 // the bits of what it costs
	chance uint32 // for whatever comes next
}

func none(chance uint32) found { return found{least: math.MaxUint32, chance: chance} }

// cheapestPlain is cheapest for these endpoints. What is drawn at random cannot
// be foreseen either: there is no branch where the walk turns.
func (g *group) cheapestPlain(s *slots, w walk, k int, now, chance uint32) found {
	var room [sideBySide]*endpoint
	f := none(chance)
	at, first, i, n := s.at[:w.n], w.start, w.at, w.n
	back := w.stride - n
	for k > 0 {
		some := 0
		for ; k > 0 && some < len(room); k-- {
			e := at[i].Load()
			i += back
			i += n & (i >> 63)
			if i == first {
				i = again(i, n)
				first = i
			}
			if e != nil {
				room[some] = e
				e.latency.word.Load() // nobody waits for it, but the line is on its way
				some++
			}
		}
		f = g.cheapestOf(room[:some], now, f)
	}
	return f
}

// cheapestOf looks at some endpoints that are in one piece, after those of which
// f is the cheapest.
func (g *group) cheapestOf(some []*endpoint, now uint32, f found) found {
	for i := 0; ; i++ {
		if f, i = g.cheapestKnown(some, i, now, f); i >= len(some) {
			return f
		}
		f.chance = nextChance(f.chance)
		its := math.Float32bits(g.costOf(some[i], now, g.usual.read(), onePart(f.chance)))
		if its < f.least {
			f.best, f.least = some[i], its
		}
	}
}

// cheapestKnown looks at those from some[i] on, up to one that fails, has not
// proven itself, or was not heard of for long, and returns where that is. It is
// costOf written out, and calls nothing, so that what it needs stays in registers.
func (g *group) cheapestKnown(some []*endpoint, i int, now uint32, f found) (found, int) {
	usual, fade := g.usual.read(), &g.fading
	fresh, slope, bend := fade.fresh, fade.slope, fade.bend
	for i < len(some) {
		e := some[i]
		status := e.status.word.Load()
		word := e.latency.word.Load()
		if status&knownMask != known {
			if !e.isIdleFounder(status) {
				break
			}
			if word == 0 { // no sample yet
				word = pack(usual, now)
			}
		}
		age := now - uint32(word>>32)
		if age > fresh { // it also is where since says 0
			break
		}
		f.chance = nextChance(f.chance)
		ticks := float32(int32(age))
		latency := math.Float32frombits(uint32(word))
		latency += (latency - usual) * (ticks * (ticks*bend - slope))
		if latency < noise {
			latency = noise
		}
		streams := streamsOf(status)
		requests := float32(int32(e.inFlight())-streams) + onePart(f.chance)
		if its := math.Float32bits(latency*requests + float32(streams)*usual); its < f.least {
			f.least, f.best = its, e
		}
		i++
	}
	return f, i
}

// isIdleFounder reports whether e is of the first set and does not fail, and
// nobody waits there: it costs what it would if it had proven itself. Where it was
// slow at first, it may stay so for a while.
func (e *endpoint) isIdleFounder(status uint32) bool {
	return status&knownMask-founder<<provenShift < tried<<provenShift && int32(e.inFlight()) == streamsOf(status)
}
