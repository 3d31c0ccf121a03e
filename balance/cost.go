package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// Cost is the cost of one more request at an endpoint. The cheapest endpoint gets it. The
// zero value is [PeakEWMA].
type Cost struct {
	name string
	of   func(Load) float64 // nil: peak EWMA
}

// Load is the state of an endpoint for a cost function.
type Load struct {
	InFlight  int           // requests
	Streaming int           // the requests of these whose response is in progress
	Latency   time.Duration // expected, by the peak EWMA
}

// PeakEWMA is the expected latency times the requests that would wait for their response,
// with the median latency for each response in progress. The expected latency is a moving
// average that jumps to its peaks. So a slow endpoint is known before requests accumulate
// there. Latencies below 1 ms cost 1 ms, because their differences are noise.
func PeakEWMA() Cost { return Cost{} }

// LeastRequest is the number of requests that would be in flight. It suits requests of
// which some take far longer than others at every endpoint.
func LeastRequest() Cost {
	return CostOf("pending", func(l Load) float64 { return float64(l.InFlight + 1) })
}

// CostOf is a custom cost. The function is called concurrently for every examined
// endpoint. It must return a number above 0 and should not allocate. The name is for
// [Balancer.Describe]. CostOf panics if the function is nil.
func CostOf(name string, of func(Load) float64) Cost {
	if of == nil {
		panic("balance: nil cost function")
	}
	return Cost{name: name, of: of}
}

// String returns the name.
func (c Cost) String() string {
	if c.of == nil {
		return "peak ewma"
	}
	return c.name
}

// group is the endpoints of a balancer as pickers see them.
type group struct {
	sets       [2]readySet // same zone, other zones
	median     medianLatency
	decay      float64 // in ticks
	decayCurve decayCurve
	cost       Cost
	slowStart  uint32 // in ticks
	spillover  float32
	weighted   atomic.Bool   // some weights differ, or change by a slow start
	random     func() uint64 // nil: math/rand, which is faster to call directly
}

const (
	near = 0
	far  = 1
)

func newGroup(p Policy, random func() uint64) *group {
	g := &group{
		decay: decayTicks(p.Decay), decayCurve: newDecayCurve(decayTicks(p.Decay)), cost: p.Cost,
		slowStart: tick(p.SlowStart), spillover: float32(p.ZoneSpillover), random: random,
	}
	g.weighted.Store(g.slowStart > 0)
	g.median.init(p.DefaultRTT)
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
	attempts    *layer.Attempts
	examined    *examined // nil without layer.Explain
}

// excludedCost is more than any latency in ns times all requests; maxCost is the greatest
// result of CostOf.
const (
	excludedCost = 1e29
	maxCost      = excludedCost / 16
)

// minLatency is the latency in ns below which the clock, the scheduler and the network
// explain all differences. A shorter one costs as much.
const minLatency = 1e6

// costOf returns the cost of one more request at e: the estimated latency for each
// waiting request, and the median for each response in progress. A response in progress
// does not wait for the latency, so that a slow endpoint may have as many streams as the
// others.
//
// The request itself counts 1 to 2 at random. Otherwise the best of idle endpoints would
// get all requests, although the estimates of equal endpoints differ by up to a half
// after the last peaks.
//
// An endpoint at its probe limit costs more than any other, unless a probe is overdue.
func (g *group) costOf(e *endpoint, now uint32, median, own float32) float32 {
	waiting, streams := e.load()
	requests := float32(waiting) + own
	switch {
	case e.atLimit(waiting) && !e.probeOverdue(now, median):
		return excludedCost * requests
	case g.cost.of != nil:
		l := Load{
			InFlight: int(max(waiting+streams, 0)), Streaming: int(max(streams, 0)),
			Latency: time.Duration(g.expected(e, now, median)),
		}
		all := float32(l.InFlight + 1)
		its := float32(g.cost.of(l))
		if !(its < maxCost) { // or no number at all
			its = maxCost
		}
		return its * (float32(l.InFlight) + own) / all
	}
	latency, failingLoad := g.expects(e, now, median)
	return max(latency, minLatency)*(requests+failingLoad) + float32(streams)*median
}

// untrustedFactor is how many times faster a latency ages during a slow start and before
// the endpoint is trusted, because an endpoint that was slow at first gets no faster
// without requests.
const untrustedFactor = 10

// expected returns the latency in ns that is expected of e, to within a thousandth.
func (g *group) expected(e *endpoint, now uint32, median float32) float32 {
	latency, _ := g.expects(e, now, median)
	return latency
}

// expects returns the expected latency of e, and how many requests count in addition.
func (g *group) expects(e *endpoint, now uint32, median float32) (latency, failingLoad float32) {
	value, age := e.latency.load(now)
	if value == 0 {
		return median, 0
	}
	ticks := float32(age)
	if _, inSlowStart := g.inSlowStart(e, now); inSlowStart || e.status.samples() < initialSet {
		ticks *= untrustedFactor
	}
	latency, left := g.decayCurve.after(ticks, value, median)
	if e.status.fails() {
		failingLoad = g.failingLoad(left)
	}
	return latency, failingLoad
}

// failingLoad returns the additional requests after the latency has aged to the part
// left. It falls three times as fast, so that it does not delay a new try where little is
// in flight.
func (g *group) failingLoad(left float32) float32 {
	return left * left * left * math.Float32frombits(g.median.failingLoad.Load())
}

// reading is the state of an endpoint when it was examined.
type reading struct {
	cost     float32
	inFlight uint64
	weight   float32
	atLimit  bool // see endpoint.atLimit
}

// read returns the state of e for pickers that do not compare costs.
func (g *group) read(e *endpoint, now uint32) reading {
	cost := g.costOf(e, now, g.median.read(), 1)
	return reading{cost, e.inFlight(), g.weight(e, now), cost >= excludedCost}
}

// minStartShare is the part of its weight that an endpoint starts with.
const minStartShare = 0.1

// weight returns the weight of e, reduced during its slow start.
func (g *group) weight(e *endpoint, now uint32) float32 {
	w := float32(e.plainWeight())
	if age, inSlowStart := g.inSlowStart(e, now); inSlowStart {
		w *= max(minStartShare, float32(age)/float32(g.slowStart))
	}
	return w
}

// inSlowStart reports whether e is in its slow start, and for how long.
func (g *group) inSlowStart(e *endpoint, now uint32) (age uint32, yes bool) {
	if g.slowStart == 0 || e.status.warm() {
		return 0, false
	}
	if age = since(now, e.slowStartTick.Load()); age < g.slowStart {
		return age, true
	}
	e.status.warmUp()
	return age, false
}
