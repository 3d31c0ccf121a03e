package balance

import (
	"fmt"
	"math"
)

// ConsistentHash sends requests that are alike to the same endpoint, where there is room:
// consistent hashing with bounded loads. What is alike a request says by
// [layer.WithAffinity]; one that does not goes by the default rule.
//
// Each endpoint has points on a ring, 100 for a unit of its weight and at most
// 6400, at places that only its address decides. A key has its place there too,
// and belongs to the next endpoint from there. So balancers over the same
// endpoints agree, in other processes and in other releases; an endpoint that
// joins or leaves takes or gives its own share of the keys, and no other key
// moves. One that is not ready has left, until it is ready again.
//
// An endpoint takes no more than bound times its share of the requests that are
// in flight, rounded up: ⌈bound·(m+1)·w/W⌉, where m is all that the ready
// endpoints have, and w/W its part of the weight. What is more goes to the next
// one on the ring that has room, so that a hot key spreads over as many
// endpoints as it needs. If none of the next 16 points has room, any endpoint
// that has will do; it is drawn at random. 1.25 is the usual bound, and what 0
// means. The lower it is the more even is the load, the more often requests that
// are alike part, and the more endpoints are looked at, on average at most
// bound/(bound−1). A bound below 1.05 is taken as that; with math.Inf(1) there
// is none.
//
// The requests in flight are counted at most every millisecond, and if no room
// is found; where there are more than 256 endpoints, they are estimated from
// 256. So an endpoint may exceed the bound by what that number changed within a
// millisecond, by the error of the estimate, which is 7 % at one request an
// endpoint and 4 % at ten, and by as many requests as choose at the same
// instant. Where no room is found after all, the first endpoint gets it.
//
// A retry or hedge goes to the next endpoint where the request has not been.
// Costs, zones and slow start make no difference to a request with a key.
func ConsistentHash(bound float64) Picker {
	if !(bound > 0) {
		bound = usualBound
	}
	bound = max(bound, leastBound)
	return Picker{fmt.Sprintf("hash, bound %g", bound), func(g *group) picker {
		return &hashing{group: g, ring: newRing(), bound: bound, draws: draws(bound), other: Picker{}.on(g)}
	}}
}

const (
	usualBound = 1.25
	leastBound = 1.05
	hops       = 16 // points on the ring that are looked at for a key
)

// draws is how many endpoints are drawn to find one with room. Those that are
// full have less than 1/c of all weight, so that one draw fails with that
// probability, and all of them once in a million times.
func draws(bound float64) int { return max(8, int(math.Ceil(math.Log(1e6)/math.Log(bound)))) }

// hashing is ConsistentHash at work.
type hashing struct {
	*group
	ring  *ring
	crowd crowd
	bound float64
	draws int
	other picker // for requests without a key
}

func (h *hashing) joined(e *endpoint) { h.ring.add(e) }
func (h *hashing) left(e *endpoint)   { h.ring.remove(e) }

// pick looks along the ring first. Where no room is found the number of
// requests may be out of date: it is counted anew before that, if this costs
// less than drawing, else after.
func (h *hashing) pick(q query) *endpoint {
	if !q.hasAffinity {
		return h.other.pick(q)
	}
	e, found := h.along(q)
	if found || e == nil {
		return e
	}
	few := h.len() <= h.draws
	if few {
		h.recount(q.now)
		if next, found := h.along(q); found {
			return next
		}
	}
	if next := h.anywhere(q); next != nil {
		return next
	}
	if !few {
		h.recount(q.now)
		if next := h.anywhere(q); next != nil {
			return next
		}
	}
	return e
}

// along returns the next endpoint along the ring that has room. If there is
// none it returns the first one, and false.
func (h *hashing) along(q query) (first *endpoint, found bool) {
	var last *endpoint
	tried := false
	c := h.ring.from(mix(q.affinity))
	for range hops {
		e := c.next()
		if e == nil {
			break
		}
		if e == last || e.status.state() != ready {
			continue
		}
		last = e
		q.why.look(h.group, e, q.now)
		switch {
		case q.tries.Has(e):
			tried = true
		case h.hasRoom(e, q.now):
			return e, true
		case first == nil:
			first = e
		}
	}
	if first == nil && tried {
		return h.other.pick(q), true // it looks elsewhere, and has an answer where there is no other
	}
	return first, false
}

// anywhere draws endpoints, each as likely as its share of the ring, until one
// has room; nil if none has.
func (h *hashing) anywhere(q query) *endpoint {
	random := h.draw()
	for i := range h.draws {
		c := h.ring.from(place(random, i))
		e := c.next()
		if e == nil {
			return nil
		}
		if e.status.state() != ready {
			continue
		}
		q.why.look(h.group, e, q.now)
		if !q.tries.Has(e) && h.hasRoom(e, q.now) {
			return e
		}
	}
	return nil
}
