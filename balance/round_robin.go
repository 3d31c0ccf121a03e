package balance

import "sync/atomic"

// RoundRobin picks the endpoints in turn. It ignores costs and weights. A counter, modulo
// the number of endpoints, is the position of the next one. A change of the ready set does
// not reset the counter.
func RoundRobin() Picker {
	return Picker{"round robin", func(g *group) picker {
		var place atomic.Uint64
		return rotation{g, func(n int) int { return int((place.Add(1) - 1) % uint64(n)) }}
	}}
}

// Random picks a random endpoint. It ignores costs and weights.
func Random() Picker {
	return Picker{"random", func(g *group) picker {
		return rotation{g, func(n int) int { return int(uint64(uint32(g.draw())) * uint64(n) >> 32) }}
	}}
}

// rotation is the picker of RoundRobin and Random. It picks an endpoint by its position in
// the ready set and ignores costs.
type rotation struct {
	*group
	place func(n int) int // returns the position to pick, below n
}

func (rotation) joined(*endpoint) {}
func (rotation) left(*endpoint)   {}

// pick returns the endpoint at the position r.place in the balancer's zone. If the request has tried
// that endpoint, pick returns the next one that the request has not tried. The endpoints of other
// zones follow those of the balancer's zone. pick examines maxExamined endpoints of each. If the
// request has tried all of them, pick returns the first.
func (r rotation) pick(q query) *endpoint {
	var tried *endpoint
	for zone := range r.sets { // near, far
		s := r.sets[zone].slots.Load()
		n := int(s.n.Load())
		if n == 0 {
			continue
		}
		place := r.place(n)
		for i := range min(n, maxExamined) {
			e := s.at[(place+i)%n].Load()
			q.examined.read(r.group, e, q.now)
			if e != nil && !q.attempts.Has(e) {
				return e
			}
			if tried == nil {
				tried = e
			}
		}
	}
	return tried
}
