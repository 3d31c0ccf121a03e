package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// group is the endpoints of a balancer, as those who choose one see them.
type group struct {
	sets      [2]readySet // the near, then the far
	usual     usual
	decay     float64 // in ticks
	fading    fading
	cost      Cost
	slowStart uint32 // in ticks
	farther   float32
	weighted  atomic.Bool   // some endpoint is not like the others
	random    func() uint64 // nil: that of math/rand, which is quicker to call by its name
}

const (
	near = 0
	far  = 1
)

func newGroup(p Policy, random func() uint64) *group {
	g := &group{
		decay: decayTicks(p.Decay), fading: newFading(decayTicks(p.Decay)), cost: p.Cost,
		slowStart: tick(p.SlowStart), farther: float32(p.ZoneSpillover), random: random,
	}
	g.weighted.Store(g.slowStart > 0)
	g.usual.init(p.DefaultRTT)
	for i := range g.sets {
		g.sets[i].clear()
	}
	return g
}

// draw returns a random number.
func (g *group) draw() uint64 {
	if g.random != nil {
		return g.random()
	}
	return rand.Uint64()
}

func (g *group) len() int { return g.sets[near].len() + g.sets[far].len() }

func (g *group) set(e *endpoint) *readySet {
	if e.far {
		return &g.sets[far]
	}
	return &g.sets[near]
}

// query is one request that looks for an endpoint.
type query struct {
	now         uint32
	affinity    uint64
	hasAffinity bool
	tries       *layer.Attempts
	why         *looks // nil: nobody asks
}

// dear is more than any latency in ns, and times all requests still a number.
// A cost of one's own is less than that.
const (
	dear    = 1e29
	dearest = dear / 16
)

// noise is the latency in ns below which the clock, the scheduler and the network
// explain all differences. A latency that is shorter costs as much.
const noise = 1e6

// costOf says what one more request would cost at e, where usual is what is
// usual: for each request that waits, the latency that is expected, and for each
// response that goes on, what is usual. Of a stream nobody waits for the latency
// any more; if it counted as such, an endpoint that was a little slower than
// others would have to have fewer streams in proportion.
//
// The request itself counts for one to two, which is drawn at random. Of
// endpoints that have nothing to do, the best by a little would get everything
// else, although what is expected of two that are equal differs by as much as half
// of it after the last few peaks; the more requests are in flight, the less it
// matters.
//
// An endpoint that is full is dearer than any that is not, unless it starves;
// should all be so, the one with the fewest is the cheapest.
func (g *group) costOf(e *endpoint, now uint32, usual, itself float32) float32 {
	waiting, streams := e.load()
	requests := float32(waiting) + itself
	switch {
	case e.full(waiting) && !e.starves(now, usual):
		return dear * requests
	case g.cost.of != nil:
		l := Load{
			InFlight: int(max(waiting+streams, 0)), Streaming: int(max(streams, 0)),
			Latency: time.Duration(g.expected(e, now, usual)),
		}
		all := float32(l.InFlight + 1)
		its := float32(g.cost.of(l))
		if !(its < dearest) { // or no number at all
			its = dearest
		}
		return its * (float32(l.InFlight) + itself) / all
	}
	latency, asIf := g.expects(e, now, usual)
	return max(latency, noise)*(requests+asIf) + float32(streams)*usual
}

// forgiving is how many times as fast what is known of an endpoint fades while
// it is not trusted yet, or in its slow start: if it was slow because it is new,
// it gets no faster without requests.
const forgiving = 10

// expected is the latency in ns that is expected of e, as estimate has it, to
// within a thousandth of it, or of what is usual if that is more.
func (g *group) expected(e *endpoint, now uint32, usual float32) float32 {
	latency, _ := g.expects(e, now, usual)
	return latency
}

// expects is what is expected of e: the latency, and for how many requests it
// counts beside those that it has.
func (g *group) expects(e *endpoint, now uint32, usual float32) (latency, asIf float32) {
	value, age := e.latency.load(now)
	if value == 0 {
		return usual, 0
	}
	ticks := float32(age)
	if _, starts := g.starts(e, now); starts || e.status.proven() < founder {
		ticks *= forgiving
	}
	latency, left := g.fading.after(ticks, value, usual)
	if e.status.fails() {
		asIf = g.asIf(left)
	}
	return latency, asIf
}

// asIf is what is left of usual.asIf where left of the latency is. It fades
// three times as fast, so that it delays no new try where little is in flight.
func (g *group) asIf(left float32) float32 {
	return left * left * left * math.Float32frombits(g.usual.asIf.Load())
}

// reading is what an endpoint was like when it was looked at.
type reading struct {
	cost     float32
	inFlight uint64
	weight   float32
	full     bool // for now, because not enough is known of it
}

// read looks at e for those who do not look at many.
func (g *group) read(e *endpoint, now uint32) reading {
	cost := g.costOf(e, now, g.usual.read(), 1)
	return reading{cost, e.inFlight(), g.weight(e, now), cost >= dear}
}

// slowest is the least part of its weight that an endpoint starts with.
const slowest = 0.1

// weight is that of e; in the time of its slow start, a growing part of it.
func (g *group) weight(e *endpoint, now uint32) float32 {
	w := float32(e.plainWeight())
	if age, starts := g.starts(e, now); starts {
		w *= max(slowest, float32(age)/float32(g.slowStart))
	}
	return w
}

// starts reports whether e is in its slow start, and for how long it has been.
func (g *group) starts(e *endpoint, now uint32) (age uint32, yes bool) {
	if g.slowStart == 0 || e.status.warm() {
		return 0, false
	}
	if age = since(now, e.started.Load()); age < g.slowStart {
		return age, true
	}
	e.status.warmUp()
	return age, false
}
