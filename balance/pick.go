package balance

import (
	"fmt"
	"math"
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
