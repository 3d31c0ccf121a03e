package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// Cost is the cost of sending one more request to an endpoint. The cheapest endpoint
// gets the request. The zero value is [EWMA].
type Cost struct {
	name string
	of   func(Load) float64 // nil for EWMA
}

// Load is the state of an endpoint, as the argument of a cost function.
type Load struct {
	InFlight  int           // requests in flight
	Streaming int           // those of InFlight whose response has begun
	Latency   time.Duration // the expected latency, by the moving average
}

// EWMA returns the default cost: the expected latency times the number of requests that
// wait for a response, plus the median latency for each response in progress. The
// expected latency is a moving average of logarithms, in which one outlier has little
// weight. Latencies below 1 ms cost 1 ms, because their differences are noise.
func EWMA() Cost { return Cost{} }

// LeastRequest returns the number of requests in flight as the cost. Use it if some
// requests take much longer than others at every endpoint.
func LeastRequest() Cost {
	return CostOf("pending", func(l Load) float64 { return float64(l.InFlight + 1) })
}

// CostOf returns a custom cost. of is called concurrently for every examined endpoint.
// It must return a number above 0 and should not allocate. name is shown by
// [Balancer.Describe]. CostOf panics if of is nil.
func CostOf(name string, of func(Load) float64) Cost {
	if of == nil {
		panic("balance: nil cost function")
	}
	return Cost{name: name, of: of}
}

// String returns the name of the cost.
func (c Cost) String() string {
	if c.of == nil {
		return "ewma"
	}
	return c.name
}

// group has the ready endpoints of a balancer, with all that a picker reads.
type group struct {
	sets       [2]readySet // same zone, other zones: see near and far
	aperture   aperture
	median     medianLatency
	decay      float64 // in ticks
	decayCurve decayCurve
	cost       Cost
	slowStart  uint32 // in ticks
	spillover  float32
	weighted   atomic.Bool   // some weights differ from 1, or may because of a slow start
	random     func() uint64 // nil for math/rand, which is faster to call directly
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
	g.median.word.Store(pack(firstLatency, 0))
	g.aperture.width.Store(math.MaxInt64)
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

// query is a request for which an endpoint is picked.
type query struct {
	now         uint32
	affinity    uint64
	hasAffinity bool
	attempts    *layer.Attempts
	examined    *examined // records the examined endpoints; nil without layer.Explain
}

// excludedCost is above every product of a latency in ns and a number of requests.
// maxCost is the limit of the results of CostOf.
const (
	excludedCost = 1e29
	maxCost      = excludedCost / 16
)

// minLatency is the shortest latency in ns that affects the cost. Differences below it
// are caused by the clock, the scheduler and the network.
const minLatency = 1e6

// costOf returns the cost of one more request at e: the expected latency for each
// waiting request, and the median for each response in progress. A slow endpoint may
// have as many responses in progress as others, because these do not wait.
//
// own is how often the request itself counts: 1 to 1.5 at random. Otherwise one of
// several idle endpoints would get all requests, because the estimates of equal
// endpoints differ.
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
		if !(its < maxCost) { // also if it is NaN
			its = maxCost
		}
		return its * (float32(l.InFlight) + own) / all
	}
	latency, failingLoad := g.expects(e, now, median)
	return max(latency, minLatency)*(requests+failingLoad) + float32(streams)*median
}

// untrustedFactor is the factor by which a latency ages faster during a slow start and
// before the endpoint is trusted. A new endpoint may be slow only at first, and without
// requests its latency would not be measured again.
const untrustedFactor = 10

// expected returns the expected latency of e in ns, to within a thousandth.
func (g *group) expected(e *endpoint, now uint32, median float32) float32 {
	latency, _ := g.expects(e, now, median)
	return latency
}

// expects returns the expected latency of e in ns, and the number of additional
// requests that count if it is failing.
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

// failingLoad returns the number of requests that count in addition at a failing endpoint. left
// is the part of its latency that has not aged. The number falls with the third power of left,
// so that it does not delay a new attempt at an endpoint with few requests in flight.
func (g *group) failingLoad(left float32) float32 {
	return left * left * left * math.Float32frombits(g.median.failingLoad.Load())
}

// reading is the state of an endpoint at the time of its examination.
type reading struct {
	cost     float32
	inFlight uint64
	weight   float32
	atLimit  bool // see endpoint.atLimit
}

// read returns the reading of e for pickers that do not compare costs.
func (g *group) read(e *endpoint, now uint32) reading {
	cost := g.costOf(e, now, g.median.read(), 1)
	return reading{cost, e.inFlight(), g.weight(e, now), cost >= excludedCost}
}

// minStartShare is the share of its weight that an endpoint has when its slow start begins.
const minStartShare = 0.1

// weight returns the weight of e, reduced during a slow start.
func (g *group) weight(e *endpoint, now uint32) float32 {
	w := float32(e.plainWeight())
	if age, inSlowStart := g.inSlowStart(e, now); inSlowStart {
		w *= max(minStartShare, float32(age)/float32(g.slowStart))
	}
	return w
}

// inSlowStart reports whether e is in its slow start, and since how many ticks.
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
