package balance

import (
	"sync"
	"time"

	"github.com/gotower/gotower/resolve"
)

// Candidate is a ready endpoint, as the rule of [Custom] sees it.
type Candidate struct {
	ID       resolve.ID
	Weight   float64       // relative to the default weight, which is 1
	Latency  time.Duration // the expected latency
	InFlight int           // requests in flight
	Tried    bool          // whether the request was sent to it before: this is a retry or a hedge
	Far      bool          // whether it is in another zone than the balancer
}

// PickRequest is what a [Custom] rule may know about a request.
type PickRequest struct {
	Affinity    uint64 // the key of [layer.WithAffinity]
	HasAffinity bool
}

// Custom returns a rule that you write yourself. pick returns an index into ready, which holds all
// ready endpoints of one priority, in no fixed order, and at least one. If the index is out of range,
// the zero [Picker] picks. pick must be safe for concurrent use and return soon, and must not keep
// ready. It may be called several times for a single request.
//
// A pick costs a look at each endpoint, so you should use Custom only for up to a few hundred
// endpoints. [Balancer.Describe] shows the name; rules with equal names count as equal in
// [Balancer.SetPolicy]. Custom panics if pick is nil.
func Custom(name string, pick func(r PickRequest, ready []Candidate) int) Picker {
	if pick == nil {
		panic("balance: Custom: nil function")
	}
	return Picker{name, func(g *group) picker { return &custom{group: g, rule: pick, fallback: Picker{}.newPicker(g)} }}
}

// custom is the picker of Custom.
type custom struct {
	*group
	rule     func(PickRequest, []Candidate) int
	fallback picker // the zero Picker's, for polls and for an index out of range
}

// joined and left tell the fallback which endpoints there are. The rule gets them with each pick.
func (c *custom) joined(e *endpoint) { c.fallback.joined(e) }
func (c *custom) left(e *endpoint)   { c.fallback.left(e) }

// candidates is the memory for one pick: the endpoints and what the rule sees of them. It is reused.
type candidates struct {
	endpoints []*endpoint
	ready     []Candidate
}

// candidatePool holds lists for the rule, because otherwise each pick would allocate one.
var candidatePool = sync.Pool{New: func() any { return new(candidates) }} //nolint:gochecknoglobals // a pool

// pick shows all ready endpoints of the group to the rule, and returns the one that the rule chooses. It
// returns nil if none is ready. If q is a poll, or the rule's index is out of range, the fallback picks.
func (c *custom) pick(q query) *endpoint {
	if q.isPoll { // must not count as a pick of the rule
		return c.fallback.pick(q)
	}
	list, _ := candidatePool.Get().(*candidates)
	defer list.release()
	p := c.params.Load()
	median := c.median.read()
	for zone := range c.sets { // the indexes are near and far
		s := c.sets[zone].slots.Load()
		for i := range int(s.n.Load()) {
			e := s.endpoints[i].Load()
			if e == nil { // it has just left the set
				continue
			}
			q.examined.read(c.group, e, q.now)
			list.endpoints = append(list.endpoints, e)
			// Index i of both slices is the same endpoint.
			list.ready = append(list.ready, Candidate{
				ID: e.id, Weight: e.plainWeight(), Latency: time.Duration(c.expects(p, e, q.now, median)),
				InFlight: int(e.inFlight()), Tried: q.attempts.Has(e), Far: zone == far,
			})
		}
	}
	if len(list.ready) == 0 {
		return nil
	}
	// The rule's index is for list.ready, and so for list.endpoints.
	i := c.rule(PickRequest{Affinity: q.affinity, HasAffinity: q.hasAffinity}, list.ready)
	if i < 0 || i >= len(list.endpoints) {
		return c.fallback.pick(q)
	}
	return list.endpoints[i]
}

// release returns c to the pool. It clears the slices, so that the pool keeps no endpoint in memory.
func (c *candidates) release() {
	clear(c.endpoints)
	clear(c.ready)
	c.endpoints, c.ready = c.endpoints[:0], c.ready[:0]
	candidatePool.Put(c)
}
