package balance

import (
	"sync/atomic"
)

// RoundRobin picks the endpoints in turn. The position is kept when the set changes.
func RoundRobin() Picker {
	return Picker{"round robin", func(g *group) picker {
		var place atomic.Uint64
		return rotation{g, func(n int) int { return int((place.Add(1) - 1) % uint64(n)) }}
	}}
}

// Random picks a random endpoint.
func Random() Picker {
	return Picker{"random", func(g *group) picker {
		return rotation{g, func(n int) int { return int(uint64(uint32(g.draw())) * uint64(n) >> 32) }}
	}}
}

// rotation is the picker that picks by position, without costs.
type rotation struct {
	*group
	place func(n int) int
}

func (rotation) joined(*endpoint) {}
func (rotation) left(*endpoint)   {}

// pick picks an endpoint of another zone only if the same zone has no endpoint. It
// skips endpoints that the request has tried, unless all were tried.
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
		q.examined.read(r.group, e, q.now)
		if e != nil && !q.attempts.Has(e) {
			return e
		}
	}
	return first
}
