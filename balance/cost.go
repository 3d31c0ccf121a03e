package balance

import (
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// Cost determines the cost of a request at an endpoint. The cheapest endpoint gets the request.
type Cost uint8

// The values of Cost.
const (
	// EWMA is the expected latency times the number of requests that wait for a response,
	// plus the median latency for each response in progress. The expected latency is a
	// moving average of the logarithms of latencies. One outlier changes it only a little.
	// Latencies below 1 ms cost 1 ms, because their differences are noise.
	EWMA Cost = iota

	// LeastRequest is the number of requests in flight. Use it if some requests take much
	// longer than others at every endpoint.
	LeastRequest
)

// String returns "ewma" or "least_request".
func (c Cost) String() string { return [...]string{"ewma", "least_request"}[min(c, LeastRequest)] }

// group has the input of a picker: the ready endpoints of a balancer, the aperture, the median
// latency, and the parameters of the policy.
type group struct {
	// sets[near] has the ready endpoints in the zone of the balancer, and sets[far] those
	// in other zones
	sets       [2]readySet
	aperture   aperture
	median     medianLatency
	decayCurve decayCurve
	cost       Cost
	slowStart  uint32        // duration of a slow start, in ticks; 0 for none
	spillover  float32       // see Policy.ZoneSpillover
	weighted   atomic.Bool   // whether a weight is or was not 1, or the policy has a slow start
	random     func() uint64 // nil for math/rand, which is faster to call directly
}

const (
	near = 0
	far  = 1
)

func newGroup(p Policy, random func() uint64) *group {
	g := &group{
		decayCurve: newDecayCurve(decayTicks(p.Decay)), cost: p.Cost,
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

// query describes one request to a picker: its time, its key and the endpoints that it has tried.
type query struct {
	now         uint32 // the time of the pick, in ticks
	affinity    uint64 // the key of layer.WithAffinity
	hasAffinity bool
	// the endpoints that the request has tried; nil if they are not recorded
	attempts *layer.Attempts
	examined *examined // records the examined endpoints; nil without layer.Explain
}

// excludedCost is a cost above every regular cost. A regular cost is a latency in ns times
// a number of requests. An endpoint at its probe limit costs at least excludedCost.
const excludedCost = 1e29

// minLatency, in ns, is the shortest latency in a cost. Shorter latencies count as minLatency,
// because differences below it are caused by the clock, the scheduler and the network.
const minLatency = 1e6

// costOf returns the cost of one more request at e. With [EWMA], it is the expected latency of e
// for each waiting request, plus the median latency for each response in progress. A response in
// progress costs the same at every endpoint, because it no longer waits. With [LeastRequest], it is
// the number of requests in flight plus the argument own.
//
// The argument own is the load of the new request: 1 to 1.5 requests, at random. Idle endpoints
// therefore get different costs in each pick. Otherwise one of several equally fast endpoints, the
// one with the lowest estimate, would get all their requests.
//
// An endpoint at its probe limit costs more than any other, unless a probe is overdue.
func (g *group) costOf(e *endpoint, now uint32, median, own float32) float32 {
	waiting, streams := e.load()
	requests := float32(waiting) + own
	switch {
	case e.atLimit(waiting) && !e.probeOverdue(now, median):
		return excludedCost * requests
	case g.cost == LeastRequest:
		return float32(max(waiting+streams, 0)) + own
	}
	latency, failingLoad := g.expects(e, now, median)
	return max(latency, minLatency)*(requests+failingLoad) + float32(streams)*median
}

// untrustedFactor multiplies the age of the latency estimate of an endpoint, so that the estimate
// approaches the median faster. It applies during the slow start of the endpoint, and while its
// sample count is below initialSet. Without it, an endpoint that is slow only at first would get no
// requests for long. Its latency would then not be measured again.
const untrustedFactor = 10

// expects returns the expected latency of e in ns: the estimate of e after it has aged towards the
// median until now. If e is failing, failingLoad is a number of requests by which the cost of e is
// increased. Otherwise it is 0. failingLoad is proportional to left³, where left is the share of the
// estimate that has not yet aged. It soon becomes small, so that the endpoint is tried again.
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
		failingLoad = left * left * left * math.Float32frombits(g.median.failingLoad.Load())
	}
	return latency, failingLoad
}

// reading is the state of an endpoint at the time at which a pick examined it.
type reading struct {
	cost     float32
	inFlight uint64
	weight   float32
	atLimit  bool // the endpoint has as many requests as a probe allows: see endpoint.atLimit
}

// read returns the cost, the requests in flight and the weight of e at the tick now, and whether e
// is at its probe limit. It is called only to explain a pick.
func (g *group) read(e *endpoint, now uint32) reading {
	cost := g.costOf(e, now, g.median.read(), 1)
	return reading{cost, e.inFlight(), g.weight(e, now), cost >= excludedCost}
}

// minStartShare is the share of its weight that an endpoint has when its slow start begins.
const minStartShare = 0.1

// weight returns the weight of e at the time now, in ticks. A slow start reduces it.
func (g *group) weight(e *endpoint, now uint32) float32 {
	w := float32(e.plainWeight())
	if age, inSlowStart := g.inSlowStart(e, now); inSlowStart {
		w *= max(minStartShare, float32(age)/float32(g.slowStart))
	}
	return w
}

// inSlowStart reports whether e is in its slow start. If it is, age is the time since the
// beginning of the slow start, in ticks.
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
