package balance

import "math"

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
