package balance

import (
	"iter"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// Cost determines the cost of a request at an endpoint. The cheapest endpoint gets the request.
type Cost uint8

// The values of Cost.
const (
	// EWMA is the expected latency times the number of requests that wait for a response, plus
	// the median latency for each response in progress. The expected latency is a moving average
	// over the logarithms, so that one outlier changes it only a little. Latencies below 1 ms cost
	// 1 ms, because their differences are noise.
	//
	// Use it if the endpoints differ in speed or distance, or if one of them may become slow.
	EWMA Cost = iota

	// LeastRequest is the number of requests in flight. You should use it if requests differ more
	// than endpoints do: if some routes or queries take a hundred times as long as others, or if
	// a burst fills all endpoints. An endpoint's latency then tells which requests it got, and
	// not how fast it is. In a simulation with 100 equal endpoints at 70 % load, where 1 % of the
	// requests take 100 times as long, the default's p99 was 26 times as long.
	LeastRequest
)

// String returns "ewma" or "least_request".
func (c Cost) String() string { return [...]string{"ewma", "least_request"}[min(c, LeastRequest)] }

// group is what a picker works on: sets of ready endpoints, with the aperture, the median latency and
// the policy's parameters. A balancer has one group for each combination of priority and weighted
// locality, so usually only one.
type group struct {
	// sets[near] holds the ready endpoints in the balancer's zone, and sets[far] those in other
	// zones
	sets     [2]readySet
	aperture aperture
	median   medianLatency
	peers    peers
	params   atomic.Pointer[params]
	picker   pickerValue
	weighted atomic.Bool   // whether a weight is or was not 1, or the policy has a slow start
	random   func() uint64 // nil for math/rand, which is faster to call directly

	// Guarded by the balancer's mutex.
	key     groupKey
	size    int    // endpoints that are ready or not
	moved   bool   // whether a ready set has changed since the last call of arrange
	weights uint32 // the weight of the locality
}

// params holds the policy's parameters that a pick uses. It is immutable.
type params struct {
	curve     decayCurve
	decay     float64 // Policy.Decay in ticks; curve.decay is longer with little traffic
	cost      Cost
	slowStart uint32        // duration of a slow start, in ticks; 0 for none
	penalty   time.Duration // see Policy.Penalty
}

// An endpoint's distance from the balancer.
const (
	near = 0 // in the zone of the balancer, or if zones are ignored
	far  = 1 // in another zone
)

// newGroup returns an empty group. The caller must set a picker with use.
func newGroup(p Policy, random func() uint64) *group {
	g := &group{random: random}
	g.setParams(p)
	// Until the first response, each endpoint is expected to take firstLatency.
	g.median.word.Store(pack(firstLatency, 0))
	// No aperture: newPicker sets a width if the picker uses one.
	g.aperture.width.Store(math.MaxInt64)
	for i := range g.sets {
		g.sets[i].clear()
	}
	return g
}

// setParams sets the parameters of a valid policy without zero fields.
func (g *group) setParams(p Policy) {
	decay := decayTicks(p.Decay)
	g.params.Store(&params{
		curve: newDecayCurve(decay), decay: decay, cost: p.Cost,
		slowStart: tick(p.SlowStart), penalty: p.Penalty,
	})
	// With a slow start, weights differ for a time.
	if p.SlowStart > 0 {
		g.weighted.Store(true)
	}
	// A change of the Peer changes the order of the sets, which arrange then restores.
	g.aperture.peers.Store(int64(p.Peer.Count))
	g.moved = true
}

// draw returns a random number.
func (g *group) draw() uint64 {
	if g.random != nil {
		return g.random()
	}
	return rand.Uint64()
}

// use sets the picker of the rule p, and tells it the ready endpoints. The caller must hold the
// balancer's mutex.
func (g *group) use(p Picker) {
	// The new picker may use no aperture; newPicker sets the width if it does.
	g.aperture.width.Store(math.MaxInt64)
	next := p.newPicker(g)
	for e := range g.endpoints() {
		next.joined(e)
	}
	g.picker.Store(&next)
}

// endpoints returns all ready endpoints. The caller must hold the balancer's mutex.
func (g *group) endpoints() iter.Seq[*endpoint] {
	return func(yield func(*endpoint) bool) {
		// One set for each zone, near and far.
		for i := range g.sets {
			s := g.sets[i].slots.Load()
			// A concurrent change may move an endpoint meanwhile, so that it is yielded twice or not at all.
			for place := range s.n.Load() {
				if !yield(s.endpoints[place].Load()) {
					return
				}
			}
		}
	}
}

// len returns the number of ready endpoints.
func (g *group) len() int { return g.sets[near].len() + g.sets[far].len() }

// set returns the ready set to which e belongs, by its zone.
func (g *group) set(e *endpoint) *readySet {
	if e.far {
		return &g.sets[far]
	}
	return &g.sets[near]
}

// query describes a request to a picker: its time, its key and the endpoints that it has tried.
type query struct {
	now         uint32 // the time of the pick, in ticks
	affinity    uint64 // the key of layer.WithAffinity
	hasAffinity bool   // the request has a key, which may be 0
	// the endpoints that the request has tried; nil if they are not recorded
	attempts *layer.Attempts
	examined *examined // records the examined endpoints; nil without layer.Explain
	isPoll   bool      // whether no request follows, so that a doubted endpoint is not probed
}

// mayProbe reports whether the request may be sent to a doubted endpoint as a probe. A retry may not,
// because the first attempt may already have failed as a probe.
func (q *query) mayProbe() bool { return !q.isPoll && q.attempts.Len() == 0 }

// excludedCost is a cost above every regular cost. A regular cost is a latency in ns times
// a number of requests. An endpoint at its probe limit costs at least excludedCost.
const excludedCost = 1e29

// minLatency, in ns, is the shortest latency in a cost. Shorter latencies count as minLatency,
// because differences below it are caused by the clock, the scheduler and the network.
const minLatency = 1e6

// costOf returns the cost of one more request at e; pickers choose the endpoint with the lowest. With
// [EWMA], it is e's expected latency for each waiting request, plus the median latency for each
// response in progress. A response in progress costs the same at every endpoint, because it no longer
// waits. With [LeastRequest], it is the number of requests in flight plus ownLoad.
//
// ownLoad is the new request's load: 1 to 2 requests, at random. This makes idle endpoints cost
// differently in each pick. Otherwise one of several equally fast endpoints, the one with the
// lowest estimate, would get all their requests.
//
// Failures increase the cost: see doubt. A doubted endpoint costs as if its latency were a failure's
// penalty, and as if more requests were in flight, except that it costs nothing if probes is true and a
// probe is due. An endpoint with a high error rate costs the penalty for each request that is likely to
// fail. An endpoint without enough samples gets only a few requests at a time; at this limit it costs
// more than any other, unless it has waited too long for a response: see probeOverdue.
func (g *group) costOf(p *params, e *endpoint, now uint32, median, ownLoad float32, probes bool) float32 {
	// Requests that wait cost the endpoint's latency; responses in progress (streams) cost the median.
	waiting, streams := e.load()
	requests := float32(waiting) + ownLoad
	// Usually false, so that the failures in the record need not be read.
	suspected := e.status.isSuspected()
	doubted := suspected && e.level.Load() > 0
	switch {
	case doubted:
		// A cost of 0 makes this request the probe.
		if e.isDue(now, g.examines(), waiting) && probes {
			return 0
		}
		requests += g.peers.failingLoad()
	// An endpoint with few samples gets only a few requests at a time. The factor keeps the order among those at their
	// limit.
	case e.atLimit(waiting) && !e.probeOverdue(now, median):
		return excludedCost * requests
	}
	var latency, penalty, rate float32
	// suspected: the endpoint is doubted or fails more often than others.
	if suspected {
		penalty = p.penaltyAt(median)
		rate = excess(e.errorRate(now, p), g.peers.errorRate())
	}
	if p.cost == LeastRequest { // as if each request took the median latency
		requests += float32(streams)
		median = max(median, minLatency)
		latency, streams = median, 0
	} else {
		latency = max(g.expects(p, e, now, median), minLatency)
	}
	// A doubted endpoint costs at least a failure. Otherwise, each request costs the penalty with the probability of
	// failing.
	if doubted {
		latency = max(latency, penalty)
	} else {
		latency += rate * penalty
	}
	cost := latency * requests
	if streams != 0 {
		cost += float32(streams) * median * g.peers.streamShare()
	}
	// The median was only a factor to add a penalty in ns; the result is a number of requests.
	if p.cost == LeastRequest {
		cost /= median
	}
	return cost
}

// examines returns the number of endpoints that a pick examines.
func (g *group) examines() uint32 { return uint32(min(g.aperture.limit(g.len()), maxExamined)) }

// untrustedFactor multiplies the age of an endpoint's latency estimate, so that it approaches the median
// faster. It applies during slow start, and until the endpoint is trusted, unless it has missed deadlines.
// Without it, an endpoint that is slow only at first would get no requests for long. Its latency would
// then not be measured again.
const untrustedFactor = 10

// expects returns e's expected latency in ns: the estimate, which has aged towards the median, or the
// median itself without a sample. See estimate.
func (g *group) expects(p *params, e *endpoint, now uint32, median float32) float32 {
	value, age := e.latency.load(now)
	if value == 0 {
		return median
	}
	ticks := float32(age)
	// The estimate of a new endpoint ages faster, unless its misses show that it is really slow.
	if _, inSlowStart := p.inSlowStart(e, now); inSlowStart || e.status.samples() != allSamples && e.missed.Load() == 0 {
		ticks *= untrustedFactor
	}
	latency, _ := p.curve.apply(ticks, value, median)
	return latency
}

// failureCost returns the cost of one more request at e, in ns, for EndpointState. It returns 0 with
// LeastRequest, and if failures do not increase the cost.
func (g *group) failureCost(e *endpoint, now uint32) time.Duration {
	p := g.params.Load()
	if p.cost == LeastRequest || !e.status.isSuspected() {
		return 0
	}
	// With one request, and without the discount of a probe.
	return time.Duration(min(g.costOf(p, e, now, g.median.read(), 1, false), float32(longestSample)))
}

// reading is the state of an endpoint at the time at which a pick examined it.
type reading struct {
	cost     float32
	inFlight uint64
	weight   float32
	atLimit  bool // the endpoint has as many requests as a probe allows: see endpoint.atLimit
}

// read returns what a pick sees of e at the tick now. It is called only to explain a pick.
func (g *group) read(e *endpoint, now uint32) reading {
	p := g.params.Load()
	cost := g.costOf(p, e, now, g.median.read(), 1, false) // with one request, and without the discount of a probe
	return reading{cost, e.inFlight(), p.weight(e, now), cost >= excludedCost}
}

// minStartShare is the share of its weight with which an endpoint begins its slow start.
const minStartShare = 0.1

// weight returns the weight of e at the time now, in ticks. A slow start reduces it.
func (p *params) weight(e *endpoint, now uint32) float32 {
	w := float32(e.plainWeight())
	if age, inSlowStart := p.inSlowStart(e, now); inSlowStart {
		// The weight grows in proportion to the time, from a tenth.
		w *= max(minStartShare, float32(age)/float32(p.slowStart))
	}
	return w
}

// inSlowStart reports whether e is in its slow start, and returns how long it has been, in ticks. When
// a slow start is over, it remembers that in e's status, so that later calls are fast.
func (p *params) inSlowStart(e *endpoint, now uint32) (age uint32, yes bool) {
	// No slow start, or the endpoint has completed it.
	if p.slowStart == 0 || e.status.warm() {
		return 0, false
	}
	if age = since(now, e.slowStartTick.Load()); age < p.slowStart {
		return age, true
	}
	e.status.warmUp()
	return age, false
}
