package balance

import (
	"sync/atomic"
)

// RoundRobin takes one endpoint after the other, whatever it costs. Its place in
// the round stays when the set changes.
func RoundRobin() Picker {
	return Picker{"round robin", func(g *group) picker {
		var place atomic.Uint64
		return rotation{g, func(n int) int { return int((place.Add(1) - 1) % uint64(n)) }}
	}}
}

// Random takes an endpoint at random, whatever it costs.
func Random() Picker {
	return Picker{"random", func(g *group) picker {
		return rotation{g, func(n int) int { return int(uint64(uint32(g.draw())) * uint64(n) >> 32) }}
	}}
}

// rotation takes the endpoint at a place that does not depend on what it costs:
// for comparison, and where costs mean nothing.
type rotation struct {
	*group
	place func(n int) int
}

func (rotation) joined(*endpoint) {}
func (rotation) left(*endpoint)   {}

// pick takes a far endpoint only if none is near. It passes over those where
// the request has been, as long as there are others.
func (r rotation) pick(q query) *endpoint {
	set := &r.sets[near]
	if set.len() == 0 {
		set = &r.sets[far]
	}
	s := set.slots.Load()
	n := int(s.n.Load())
	if n == 0 {
		return nil
	}
	place := r.place(n)
	first := s.at[place].Load()
	for i := range min(n, maxWalk) {
		e := s.at[(place+i)%n].Load()
		q.why.look(r.group, e, q.now)
		if e != nil && !q.tries.Has(e) {
			return e
		}
	}
	return first
}
