package balance

import (
	"fmt"
	"math"
)

// Picker is a rule that picks one of the ready endpoints. The zero value picks the cheapest one. If
// there are more than 24 endpoints, it considers only an aperture: eight random endpoints at first. The
// aperture grows by one endpoint whenever the picked endpoint already serves at least two requests, and
// shrinks slowly while its endpoints have little to do. If it has more than 24 endpoints, the zero
// value picks the cheapest of 24 random ones.
//
// The apertures of different balancers overlap at random. If few balancers share many endpoints, the
// load is uneven: with 20 balancers and 3000 endpoints, the busiest one got 42 times the mean. This
// matters only if an aperture of eight endpoints is busy, because a busy aperture grows. If it matters
// to you, set [Policy].Peer.
//
// Many balancers compare two random endpoints. The k slowest of n endpoints then get at least
// C(k,2)/C(n,2) of the requests. SIMULATION.md shows the figures.
type Picker struct {
	name  string                // what String returns; rules with equal names count as equal in SetPolicy
	start func(g *group) picker // makes the picker of a group; nil means the zero Picker
}

// picker is the implementation of a Picker for one balancer. pick may be called while the
// ready sets change. pick returns nil if it finds no endpoint. joined and left are called
// with the balancer's mutex held when an endpoint is added to or removed from a ready set.
type picker interface {
	pick(q query) *endpoint
	joined(e *endpoint)
	left(e *endpoint)
}

// maxExamined is how many endpoints of one ready set a pick examines at most in one pass. The pass of a
// retry, which looks for an endpoint that it has not tried, has the same limit.
const maxExamined = 24

// String returns a short description of the rule.
func (p Picker) String() string {
	if p.start == nil {
		return fmt.Sprintf("cheapest of up to %d in an aperture", maxExamined)
	}
	return p.name
}

// newPicker returns a picker of this rule for the group g.
func (p Picker) newPicker(g *group) picker {
	// The zero value starts with the smallest aperture.
	if p.start == nil {
		g.aperture.width.Store(minAperture)
		return &choices{g, maxExamined}
	}
	return p.start(g)
}

// choices is the picker that compares the costs of k random endpoints in the aperture, or of all if
// there are at most k.
type choices struct {
	*group
	k int
}

// joined and left do nothing, because the picker keeps no list of endpoints.
func (*choices) joined(*endpoint) {}
func (*choices) left(*endpoint)   {}

// pick returns the cheapest endpoint, and widens the aperture if that endpoint is busy.
func (c *choices) pick(q query) *endpoint {
	var e *endpoint
	for range 3 { // another request may claim a probe first
		// Most requests are first attempts, without zones, weights and explanations.
		if q.attempts == nil && q.examined == nil && c.isEven() && c.sets[far].len() == 0 {
			e = c.pickPlain(&c.sets[near], moment{q.now, !q.isPoll}).best
		} else {
			e = c.cheapestOfZones(q)
		}
		// E is no probe, or this request is.
		if e == nil || q.isPoll || !e.status.isSuspected() || e.level.Load() == 0 || e.claimProbe(q.now) {
			break
		}
	}
	// The picked endpoint was the cheapest, so the aperture has too few idle ones.
	if e != nil && e.inFlight() >= busyEndpoint {
		c.aperture.widen(c.len())
	}
	return e
}

// cheapestOfZones returns the cheapest endpoint of the balancer's own zone, unless the cheapest one
// elsewhere would still be cheaper with zoneAdvantage more requests in flight. An endpoint that the
// request has not tried precedes one that it has tried.
func (c *choices) cheapestOfZones(q query) *endpoint {
	nearBest, cost := c.pickAmong(&c.sets[near], q)
	if c.sets[far].len() == 0 {
		return nearBest
	}
	farBest, farCost := c.pickAmong(&c.sets[far], q)
	if farBest == nil {
		return nearBest
	}
	// As if zoneAdvantage more requests were in flight at the far endpoint.
	farCost *= 1 + zoneAdvantage/float32(farBest.inFlight()+1)
	// An untried endpoint comes first, and then the lower cost.
	nearTried := q.attempts.Has(nearBest)
	farTried := q.attempts.Has(farBest)
	if nearBest == nil || nearTried && !farTried || nearTried == farTried && farCost < cost {
		return farBest
	}
	return nearBest
}

// zoneAdvantage is how many more requests an endpoint in the balancer's zone may have in flight than
// an equal one elsewhere.
const zoneAdvantage = 3

// isEven reports whether all endpoints are compared by the same, default cost, so that the simple rules of
// pickPlain apply: the cost is EWMA, all weights have always been 1, and the policy sets no slow start.
func (g *group) isEven() bool { return g.params.Load().cost == EWMA && !g.weighted.Load() }

// pickPlain picks the cheapest endpoint like pickAmong, but faster, because isEven is true. Unlike
// pickAmong, it may pick an endpoint that the request has tried, and it records no explanation.
func (c *choices) pickPlain(r *readySet, m moment) found {
	s := r.slots.Load()
	// One random number gives the order and all other chances of this pick.
	random := c.draw()
	n := c.aperture.limit(int(s.n.Load()))
	// A small aperture is scanned in the array front, which is one memory access less for each endpoint.
	if front := *s.front.Load(); n <= len(front) && n <= c.k {
		return c.cheapestOf(front[:n], m, chanceOf(random))
	}
	k, w := c.walk(n, random)
	return c.cheapestPlain(s, w, k, m, chanceOf(random))
}

// moment is the part of a query that pickPlain uses.
type moment struct {
	now    uint32
	probes bool // see query.mayProbe
}

// walk chooses which of an aperture's n endpoints a pick examines: k of them, in the order of w.
func (c *choices) walk(n int, random uint64) (k int, w walk) {
	// With a random start and stride, the first k indexes are a random sample.
	k, w = min(c.k, n), newWalk(random, n)
	if n <= c.k {
		w.stride = 1 // a predictable order for a full scan
	}
	return k, w
}

// pickAmong returns the cheapest of the examined endpoints in r, and its cost divided by its weight. If
// the request has tried some of them, it prefers the others. best is nil if the set is empty.
func (c *choices) pickAmong(r *readySet, q query) (best *endpoint, cost float32) {
	if q.examined == nil && c.isEven() {
		// pickPlain ignores which endpoints the request has tried. It picks one of these only rarely,
		// so usually its result can be used.
		if f := c.pickPlain(r, moment{q.now, q.mayProbe()}); !q.attempts.Has(f.best) {
			return f.best, math.Float32frombits(f.costBits)
		}
	}
	// One random number gives the order of the endpoints and the seed of all other chances.
	s := r.slots.Load()
	random := c.draw()
	size := int(s.n.Load())
	n := min(c.aperture.limit(size)+q.attempts.Len(), size)                 // a retry may use one more for each attempt
	k, w := c.walk(n, random)                                               // how many endpoints to examine, and in which order
	if best, cost = c.cheapest(s, w, k, q, chanceOf(random)); best == nil { // the request has tried all of them
		q.attempts = nil
		return c.cheapest(s, w, k, q, chanceOf(random))
	}
	return best, cost
}

// cheapest returns the cheapest of k endpoints in s that the request has not tried, and its cost
// divided by its weight. It visits at most maxExamined endpoints, in the order of w, so it may find
// fewer than k. best is nil if it finds none. chance is the seed for random numbers: see nextChance.
func (g *group) cheapest(s *slots, w walk, k int, q query, chance uint32) (best *endpoint, cost float32) {
	t := comparison{group: g, query: q, params: g.params.Load(), median: g.median.read(), weighted: g.weighted.Load(), chance: chance}
	for visits := min(w.n, maxExamined); visits > 0 && k > 0; visits-- {
		e := s.endpoints[w.next()].Load()
		// The slot is empty for a moment while another goroutine changes the set.
		if e == nil {
			continue
		}
		if q.attempts.Has(e) {
			// Tried endpoints are shown in an explanation, but do not compete.
			q.examined.read(g, e, q.now)
			continue
		}
		t.add(e)
		k--
	}
	// A weight may be 0, by which nothing can be divided.
	return t.best, t.cost / max(t.weight, math.SmallestNonzeroFloat32)
}

// comparison finds the cheapest of the endpoints that are passed to its method add, for any weights and
// any Cost. It also collects them for an explanation.
type comparison struct {
	*group
	query

	params   *params
	median   float32 // median latency in ns
	weighted bool    // see group.weighted
	chance   uint32  // the last random number: see nextChance

	best     *endpoint // the cheapest endpoint so far
	cost     float32   // its cost, not divided by its weight
	weight   float32
	inFlight uint64
	tied     float32 // the total weight of the best endpoint and those similar to it
}

// similar is the cost ratio up to which two endpoints with equally many requests in flight count
// as equal. The estimates of equally fast endpoints differ by up to this ratio.
const similar = 1.5

// add makes e the best endpoint so far if its cost divided by its weight is lower than that of the
// best. Without weights, each weight is 1. With weights, endpoints with similar costs and equally many
// requests in flight count as tied, and each of them wins with a probability in proportion to its
// weight.
func (t *comparison) add(e *endpoint) {
	// Each comparison needs its own chance: for the load of the new request, or for a draw among tied endpoints.
	t.chance = nextChance(t.chance)
	ownLoad := ownShare(t.chance)
	random := ownLoad - 1
	// With weights, the random number decides between tied endpoints instead of changing the load.
	share := float32(1)
	if t.weighted {
		ownLoad, share = 1, t.params.weight(e, t.now)
	}
	cost := t.costOf(t.params, e, t.now, t.median, ownLoad, t.mayProbe())
	busy := e.inFlight()
	if t.examined != nil {
		t.examined.add(e, reading{cost, busy, share, cost >= excludedCost})
	}
	switch {
	case t.best == nil:
	// Tied with the best so far. Replacing it with probability share/tied gives each tied endpoint its share of the
	// wins.
	case t.weighted && busy == t.inFlight && cost < t.cost*similar && t.cost < cost*similar:
		t.tied += share
		if random*t.tied < share {
			t.best, t.cost, t.weight = e, cost, share
		}
		return
	case cost*t.weight >= t.cost*share: // cost/share ≥ t.cost/t.weight, without dividing
		return
	}
	t.best, t.cost, t.weight, t.inFlight, t.tied = e, cost, share, busy, share
}

// chanceOf derives the seed for nextChance from the random number with which a pick also chooses the
// order of the endpoints, so that one random number is enough. The seed is independent of that order.
func chanceOf(random uint64) uint32 { return uint32(random>>32) ^ uint32(random) }

// nextChance returns the random number that follows c in a linear congruential generator.
// Only the upper bits of the result are random enough to use.
func nextChance(c uint32) uint32 { return c*1664525 + 1013904223 }

// ownShare returns the load that costOf counts for the new request. It converts the random
// number chance to the range from 1 to below 2.
func ownShare(chance uint32) float32 { return math.Float32frombits(chance>>9 | 127<<23) }

// The functions below do the same as comparison for the usual pick: equal weights, the
// default cost and no explanation. They first find the endpoints to examine and then
// compute the costs, so that the cache lines are fetched concurrently. Costs are
// compared by their bits, which have the same order, because that needs no branch.

// found is the cheapest endpoint that a pick has found so far.
type found struct {
	best     *endpoint // nil before the first one
	costBits uint32    // the cost of best as math.Float32bits returns it; the largest value before the first one
	chance   uint32    // the random number from which nextChance makes that of the next comparison
}

// cheapestPlain returns the cheapest of the next k endpoints in s, in the order of w, by the simple
// rules of pickPlain, so that isEven must be true: all weights are equal and the cost is the default
// one. chance is the seed for the random loads of the new request: see ownShare.
func (g *group) cheapestPlain(s *slots, w walk, k int, m moment, chance uint32) found {
	var room [maxExamined]*endpoint
	endpoints := room[:0]
	for range k {
		if e := s.endpoints[w.next()].Load(); e != nil {
			e.latency.word.Load() // fetches its cache line, which cheapestOf reads later
			endpoints = append(endpoints, e)
		}
	}
	return g.cheapestOf(endpoints, m, chance)
}

// cheapestOf returns the cheapest of the given endpoints: cheapestKnown compares most of them, and
// costOf the others. isEven must be true.
func (g *group) cheapestOf(endpoints []*endpoint, m moment, chance uint32) found {
	f := found{costBits: math.MaxUint32, chance: chance}
	p := g.params.Load()
	for {
		// cheapestKnown stops at an endpoint that needs the full formula; costOf compares it, and the loop goes on
		// after it.
		var count int
		if f, count = g.cheapestKnown(p, endpoints, m.now, f); count == len(endpoints) {
			return f
		}
		e := endpoints[count]
		f.chance = nextChance(f.chance)
		if costBits := math.Float32bits(g.costOf(p, e, m.now, g.median.read(), ownShare(f.chance), m.probes)); costBits < f.costBits {
			f.best, f.costBits = e, costBits
		}
		endpoints = endpoints[count+1:]
	}
}

// cheapestKnown compares endpoints with f, the cheapest one so far, until it comes to one whose cost
// only costOf can compute: one that is suspected or not trusted, or whose estimate is old. It returns
// the cheapest one and how many it has compared. It repeats the formula of costOf without calls, so
// that all values stay in registers, because most of a pick's time is spent here.
func (g *group) cheapestKnown(p *params, endpoints []*endpoint, now uint32, f found) (found, int) {
	median := g.median.read()
	fade := &p.curve
	// Local copies, so that the loop reads no memory but the endpoints.
	fresh := fade.fresh
	slope := fade.slope
	bend := fade.bend
	short := float32(minLatency) // an estimate up to this stays below minLatency as it ages
	if median > minLatency {
		short = 0
	}
	for i, e := range endpoints {
		status := e.status.word.Load()
		word := e.latency.word.Load()
		// The endpoint is not trusted or is suspected. Only one that is idle and new to the balancer still has a simple
		// cost.
		if status&trustedMask != trustedBits {
			if word != 0 || !e.isIdleInitial(status) {
				return f, i
			}
			word = pack(median, now) // no sample yet
		}
		age := now - uint32(word>>32)
		if age > fresh { // also if the sample is newer than now
			return f, i
		}
		f.chance = nextChance(f.chance)
		latency := float32(minLatency)
		if aged := math.Float32frombits(uint32(word)); aged > short {
			// The decay curve of estimate, with the age in ticks.
			ticks := float32(int32(age))
			if aged += (aged - median) * (ticks * (ticks*bend - slope)); aged > minLatency {
				latency = aged
			}
		}
		streams := streamsOf(status)
		// Waiting requests cost the latency each, and responses in progress the median: see costOf.
		cost := latency * (float32(int32(e.inFlight())-streams) + ownShare(f.chance))
		if streams != 0 {
			cost += float32(streams) * median * g.peers.streamShare()
		}
		if costBits := math.Float32bits(cost); costBits < f.costBits {
			f.costBits, f.best = costBits, e
		}
	}
	return f, len(endpoints)
}

// isIdleInitial reports whether e costs the same as a trusted endpoint although it is still being
// probed: no requests wait there, it is not suspected, and it began with initialSet samples, which
// means that it is one of the balancer's first endpoints. status is the value of e.status.word.
func (e *endpoint) isIdleInitial(status uint32) bool {
	// The unsigned difference is this small only if e began with initialSet samples and is not suspected.
	return status&trustedMask-initialSet<<samplesShift < probeSamples<<samplesShift && int32(e.inFlight()) == streamsOf(status)
}
