package balance

import (
	"math"
	"sync/atomic"
)

// RoundRobin picks the endpoints in turn and ignores costs. Changes to the ready set do not reset
// its position.
//
// Endpoints with different weights get requests in proportion to their weights, and each endpoint's
// requests are spread evenly. Such a pick reads the weights of all endpoints.
func RoundRobin() Picker {
	return Picker{"round robin", func(g *group) picker {
		var counter atomic.Uint64
		return rotation{
			g,
			// The next position, which wraps at the number of ready endpoints.
			func(n int) int { return int((counter.Add(1) - 1) % uint64(n)) },
			// Multiples of the golden ratio spread a heavy endpoint's turns evenly.
			func() float64 { return fraction((counter.Add(1) - 1) * golden) },
		}
	}}
}

// golden is the golden ratio as a fraction of 1<<64. Its multiples' fractions are spread evenly.
const golden = 0x9e3779b97f4a7c15

// fraction returns n / (1<<64), which is below 1.
func fraction(n uint64) float64 { return float64(n>>11) / (1 << 53) }

// Random picks a random endpoint and ignores costs. Endpoints with different weights get requests
// in proportion to their weights, as with [RoundRobin].
//
// The queues of endpoints become uneven by chance. If the endpoints are busy for more than 80 % of the
// time, set no AttemptTimeout of a retry below about fifteen times the mean response time: in a
// simulation with eight endpoints at 84 %, up to 1.5 % of the requests failed with eleven times. A retry
// with a logger warns about such a limit, see [layer.WithLogger].
func Random() Picker {
	return Picker{"random", func(g *group) picker {
		return rotation{
			g,
			// Multiplying by n and shifting is faster than a remainder.
			func(n int) int { return int(uint64(uint32(g.draw())) * uint64(n) >> 32) },
			func() float64 { return fraction(g.draw()) },
		}
	}}
}

// rotation is the picker of RoundRobin and Random. It picks an endpoint by its position in
// the ready set and ignores costs.
type rotation struct {
	*group
	place func(n int) int // returns the position to pick, below n
	share func() float64  // returns the part of the total weight before the endpoint to pick, below 1
}

// position returns the position to pick among the first n endpoints of s: the next or a random one.
// With different weights, it chooses a part of the total weight, and returns the endpoint to which this
// part belongs.
func (r rotation) position(s *slots, n int) int {
	if !r.weighted.Load() {
		return r.place(n)
	}
	// The weights may differ, but if all are equal, the plain order is enough.
	total := 0.0
	lightest := math.Inf(1)
	heaviest := 0.0
	for i := range n {
		if e := s.endpoints[i].Load(); e != nil {
			w := e.plainWeight()
			total, lightest, heaviest = total+w, min(lightest, w), max(heaviest, w)
		}
	}
	if lightest >= heaviest {
		return r.place(n)
	}
	// Walk along the weights to the endpoint in whose part offset lies.
	offset := r.share() * total
	for i := range n {
		if e := s.endpoints[i].Load(); e != nil {
			if offset -= e.plainWeight(); offset < 0 {
				return i
			}
		}
	}
	return n - 1 // weights have changed
}

// joined and left do nothing, because a rotation keeps no list of endpoints.
func (rotation) joined(*endpoint) {}
func (rotation) left(*endpoint)   {}

// pick takes the first endpoint that the request has not tried, beginning at the position from
// r.position, in the balancer's own zone first. It looks at no more than maxExamined endpoints per
// zone. If the request has tried all of them, it returns the first.
func (r rotation) pick(q query) *endpoint {
	var first *endpoint
	for zone := range r.sets { // near, far
		s := r.sets[zone].slots.Load()
		n := int(s.n.Load())
		if n == 0 {
			continue
		}
		start := r.position(s, n)
		for i := range min(n, maxExamined) {
			e := s.endpoints[(start+i)%n].Load()
			q.examined.read(r.group, e, q.now)
			if e != nil && !q.attempts.Has(e) {
				return e
			}
			// Returned if the request has tried all of them.
			if first == nil {
				first = e
			}
		}
	}
	return first
}
