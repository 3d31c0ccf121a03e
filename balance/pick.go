package balance

import (
	"fmt"
	"math"
)

// Picker is a rule that picks one of the ready endpoints. The zero value picks the cheapest one. If
// there are more than 24 endpoints, it considers only an aperture: eight random endpoints at first.
// The aperture grows by one endpoint whenever the picked endpoint has at least two requests in
// flight. The aperture shrinks slowly while its endpoints have few requests. If it has more than 24
// endpoints, the zero value picks the cheapest of 24 random ones.
//
// Many balancers compare two random endpoints. The k slowest of n endpoints then get at least
// C(k,2)/C(n,2) of the requests. SIMULATION.md has the figures.
type Picker struct {
	name  string
	start func(g *group) picker
}

// picker is the implementation of a Picker for one balancer. pick may be called while the
// ready sets change. pick returns nil if it finds no endpoint. joined and left are called
// with the balancer's mutex held when an endpoint is added to or removed from a ready set.
type picker interface {
	pick(q query) *endpoint
	joined(e *endpoint)
	left(e *endpoint)
}

// maxExamined is the largest number of endpoints that a pick examines. A retry visits at
// most this number to find one that it has not tried.
const maxExamined = 24

// String returns a short description of the rule.
func (p Picker) String() string {
	if p.start == nil {
		return fmt.Sprintf("cheapest of up to %d in an aperture", maxExamined)
	}
	return p.name
}

func (p Picker) on(g *group) picker {
	if p.start == nil {
		g.aperture.width.Store(minAperture)
		return &choices{g, maxExamined}
	}
	return p.start(g)
}

// choices is the picker that compares costs. A pick examines k random endpoints of the
// aperture, or all if there are at most k.
type choices struct {
	*group
	k int
}

func (*choices) joined(*endpoint) {}
func (*choices) left(*endpoint)   {}

// pick returns the cheapest endpoint, and widens the aperture if that endpoint is busy.
func (c *choices) pick(q query) *endpoint {
	var e *endpoint
	if q.attempts == nil && q.examined == nil && c.isEven() && c.sets[far].len() == 0 {
		e = c.pickPlain(&c.sets[near], q.now).best
	} else {
		e = c.cheapestOfZones(q)
	}
	if e != nil && e.inFlight() >= busyEndpoint {
		c.aperture.widen(c.len())
	}
	return e
}

// cheapestOfZones returns the cheapest endpoint of the balancer's zone. It returns the cheapest
// endpoint of the other zones instead, if that one would still be cheaper with ZoneSpillover − 1
// more requests. An endpoint that the request has not tried always precedes one that it has tried.
func (c *choices) cheapestOfZones(q query) *endpoint {
	here, cost := c.pickAmong(&c.sets[near], q)
	if c.sets[far].len() == 0 {
		return here
	}
	there, farCost := c.pickAmong(&c.sets[far], q)
	if there == nil {
		return here
	}
	farCost *= 1 + (c.spillover-1)/float32(there.inFlight()+1)
	tried, farTried := q.attempts.Has(here), q.attempts.Has(there)
	if here == nil || tried && !farTried || tried == farTried && farCost < cost {
		return there
	}
	return here
}

// isEven reports whether three conditions hold: the cost is EWMA, all weights have always
// been 1, and the policy has no slow start.
func (g *group) isEven() bool { return g.cost == EWMA && !g.weighted.Load() }

// pickPlain is a faster form of pickAmong for the usual configuration: isEven must return true.
// Unlike pickAmong, it also picks endpoints that the request has tried, and records no explanation.
func (c *choices) pickPlain(r *readySet, now uint32) found {
	s, random := r.slots.Load(), c.draw()
	n := c.aperture.limit(int(s.n.Load()))
	if front := *s.front.Load(); n <= len(front) && n <= c.k {
		return c.cheapestOf(front[:n], now, chanceOf(random))
	}
	k, w := c.walk(n, random)
	return c.cheapestPlain(s, w, k, now, chanceOf(random))
}

// walk returns the number k of endpoints to examine in an aperture of n endpoints, and the order w
// in which a pick visits them.
func (c *choices) walk(n int, random uint64) (k int, w walk) {
	k, w = min(c.k, n), newWalk(random, n)
	if n <= c.k {
		w.stride = 1 // a predictable order for a full scan
	}
	return k, w
}

// pickAmong returns the cheapest examined endpoint of the ready set r, and its cost. It prefers
// endpoints that the request has not tried. If the request has tried all examined endpoints, the
// result is the cheapest of them. The result best is nil if the set is empty.
func (c *choices) pickAmong(r *readySet, q query) (best *endpoint, cost float32) {
	if q.examined == nil && c.isEven() {
		if f := c.pickPlain(r, q.now); !q.attempts.Has(f.best) {
			return f.best, math.Float32frombits(f.least)
		}
	}
	s, random := r.slots.Load(), c.draw()
	all := int(s.n.Load())
	n := min(c.aperture.limit(all)+q.attempts.Len(), all) // a retry may use one more for each attempt
	k, w := c.walk(n, random)
	if best, cost = c.cheapest(s, w, k, q, chanceOf(random)); best == nil {
		q.attempts = nil
		return c.cheapest(s, w, k, q, chanceOf(random))
	}
	return best, cost
}

// cheapest returns the cheapest of k endpoints in s that the request has not tried, and its cost
// per weight. It visits at most maxExamined endpoints in the order of the walk w. Therefore it may
// find fewer than k. It returns nil if it finds none. The argument chance is a random number: see
// nextChance.
func (g *group) cheapest(s *slots, w walk, k int, q query, chance uint32) (best *endpoint, cost float32) {
	t := comparison{group: g, query: q, median: g.median.read(), weighted: g.weighted.Load(), chance: chance}
	for visits := min(w.n, maxExamined); visits > 0 && k > 0; visits-- {
		e := s.at[w.next()].Load()
		if e == nil {
			continue
		}
		if q.attempts.Has(e) {
			q.examined.read(g, e, q.now)
			continue
		}
		t.add(e)
		k--
	}
	return t.best, t.cost / max(t.weight, math.SmallestNonzeroFloat32)
}

// comparison finds the cheapest of the endpoints that are passed to its method add. It
// supports any weights and any Cost, and records the endpoints for an explanation.
type comparison struct {
	*group
	query

	median   float32 // median latency in ns
	weighted bool    // see group.weighted
	chance   uint32  // the last random number: see nextChance

	best     *endpoint // the cheapest endpoint so far
	cost     float32   // its cost, not divided by its weight
	weight   float32
	inFlight uint64
	tied     float32 // the total weight of the best endpoint and those similar to it
}

// similar is the ratio of costs up to which two endpoints with the same number of requests in
// flight count as equal. The estimates of equally fast endpoints differ by up to this ratio.
const similar = 1.5

// add makes e the best endpoint if its cost per weight is lower than that of the best endpoint so
// far. Without weights, each weight is 1. With weights, endpoints with similar costs and equal
// requests in flight are tied. Each of them becomes the best one with a probability in proportion
// to its weight.
func (t *comparison) add(e *endpoint) {
	t.chance = nextChance(t.chance)
	own := ownShare(t.chance)
	at, share := 2*(own-1), float32(1)
	if t.weighted {
		own, share = 1, t.group.weight(e, t.now)
	}
	its, busy := t.costOf(e, t.now, t.median, own), e.inFlight()
	if t.examined != nil {
		t.examined.add(e, reading{its, busy, share, its >= excludedCost})
	}
	switch {
	case t.best == nil:
	case t.weighted && busy == t.inFlight && its < t.cost*similar && t.cost < its*similar:
		t.tied += share
		if at*t.tied < share {
			t.best, t.cost, t.weight = e, its, share
		}
		return
	case its*t.weight >= t.cost*share: // its/share ≥ cost/weight, without dividing
		return
	}
	t.best, t.cost, t.weight, t.inFlight, t.tied = e, its, share, busy, share
}

// chanceOf returns the seed from which nextChance makes the random numbers of a pick. The argument
// random is the number from which newWalk makes the order of the endpoints. The seed is independent
// of this order.
func chanceOf(random uint64) uint32 { return uint32(random>>32) ^ uint32(random) }

// nextChance returns the random number that follows c in a linear congruential generator.
// Only the upper bits of the result are random enough to use.
func nextChance(c uint32) uint32 { return c*1664525 + 1013904223 }

// ownShare returns the load that costOf counts for the new request. It converts the random
// number chance to the range from 1 to below 1.5.
func ownShare(chance uint32) float32 { return math.Float32frombits(chance>>10 | 127<<23) }

// The functions below do the same as comparison for the usual pick: equal weights, the
// default cost and no explanation. They first find the endpoints to examine and then
// compute the costs, so that the cache lines are fetched concurrently. Costs are
// compared by their bits, which have the same order, because that needs no branch.

// found is the cheapest endpoint that a pick has found so far.
type found struct {
	best   *endpoint // nil before the first one
	least  uint32    // the bits of the cost of best
	chance uint32    // the random number for the next comparison
}

// cheapestPlain returns the cheapest of the next k endpoints in s, in the order of the walk w. It
// may be called only if isEven returns true.
func (g *group) cheapestPlain(s *slots, w walk, k int, now, chance uint32) found {
	var room [maxExamined]*endpoint
	endpoints := room[:0]
	for range k {
		if e := s.at[w.next()].Load(); e != nil {
			e.latency.word.Load() // fetches the line
			endpoints = append(endpoints, e)
		}
	}
	return g.cheapestOf(endpoints, now, chance)
}

// cheapestOf returns the cheapest of the given endpoints. It may be called only if isEven
// returns true.
func (g *group) cheapestOf(endpoints []*endpoint, now, chance uint32) found {
	f := found{least: math.MaxUint32, chance: chance}
	for {
		var known int
		if f, known = g.cheapestKnown(endpoints, now, f); known == len(endpoints) {
			return f
		}
		e := endpoints[known]
		f.chance = nextChance(f.chance)
		if its := math.Float32bits(g.costOf(e, now, g.median.read(), ownShare(f.chance))); its < f.least {
			f.best, f.least = e, its
		}
		endpoints = endpoints[known+1:]
	}
}

// cheapestKnown compares the elements of endpoints with f, the cheapest endpoint so far. It returns
// the cheapest one and the number of endpoints that it has compared. It stops before an endpoint
// with a cost that only costOf can compute: one that is failing or not trusted, or has an old
// estimate. It computes costs without calls, so that all values stay in registers.
func (g *group) cheapestKnown(endpoints []*endpoint, now uint32, f found) (found, int) {
	median, fade := g.median.read(), &g.decayCurve
	fresh, slope, bend := fade.fresh, fade.slope, fade.bend
	short := float32(minLatency) // an estimate up to this stays below minLatency as it ages
	if median > minLatency {
		short = 0
	}
	for i, e := range endpoints {
		status := e.status.word.Load()
		word := e.latency.word.Load()
		if status&trustedMask != trustedBits {
			if !e.isIdleInitial(status) {
				return f, i
			}
			if word == 0 { // no sample yet
				word = pack(median, now)
			}
		}
		age := now - uint32(word>>32)
		if age > fresh { // also if the sample is newer than now
			return f, i
		}
		f.chance = nextChance(f.chance)
		latency := float32(minLatency)
		if aged := math.Float32frombits(uint32(word)); aged > short {
			ticks := float32(int32(age))
			if aged += (aged - median) * (ticks * (ticks*bend - slope)); aged > minLatency {
				latency = aged
			}
		}
		streams := streamsOf(status)
		cost := latency * (float32(int32(e.inFlight())-streams) + ownShare(f.chance))
		if streams != 0 {
			cost += float32(streams) * median
		}
		if its := math.Float32bits(cost); its < f.least {
			f.least, f.best = its, e
		}
	}
	return f, len(endpoints)
}

// isIdleInitial reports whether e has had fewer than probeSamples samples since its count began at
// initialSet, is not failing, and has no waiting requests. Such an endpoint has the same cost as a
// trusted endpoint although it is still probed. status is the value of e.status.word.
func (e *endpoint) isIdleInitial(status uint32) bool {
	return status&trustedMask-initialSet<<samplesShift < probeSamples<<samplesShift && int32(e.inFlight()) == streamsOf(status)
}
