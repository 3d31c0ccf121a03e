package simulation

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// prequal picks from a pool of probe responses. Each request sends three probes to random
// endpoints. A probe returns the number of requests in flight and the latency at that number.
// An endpoint is hot if its number is above the 84 % quantile of recent probes. The pick is the
// cold endpoint with the lowest latency, or the hot one with the fewest requests.
type prequal struct {
	fleet[struct{}]
	env
	random *rand.Rand
	pool   []probed
	recent [128]int // numbers of requests in flight of recent probes
	probes int
	most   int  // the greatest number of requests in flight of a cold endpoint
	worst  bool // whether the last removal was of the worst probe, or of the oldest
}

type probed struct {
	place, inFlight int
	latency         time.Duration
	at              time.Duration
	uses            int
}

func newPrequal(e env) policy {
	return &prequal{fleet: fleet[struct{}]{create: func(time.Duration) *struct{} { return nil }}, env: e, random: source(e.seed)}
}

const (
	prequalPool   = 16
	prequalProbes = 3
	prequalAge    = sec
)

func (p *prequal) set(live []int, now time.Duration) {
	p.fleet.set(live, now)
	p.pool = p.pool[:0]
}

func (p *prequal) limit(ids []int) {
	p.fleet.limit(ids)
	p.pool = p.pool[:0]
}

func (p *prequal) send(r *request, now time.Duration) {
	p.pool = slices.DeleteFunc(p.pool, func(b probed) bool { return now-b.at > prequalAge })
	p.most = p.hot()
	i := p.random.IntN(len(p.ids))
	if len(p.pool) >= 2 {
		best := p.best(p.better)
		i = p.pool[best].place
		p.pool[best].inFlight++
		p.pool[best].uses++
		if float64(p.pool[best].uses) >= p.maxUses() {
			p.pool = slices.Delete(p.pool, best, best+1)
		}
	}
	p.remove()
	for range min(prequalProbes, len(p.ids)) {
		p.probe(p.random.IntN(len(p.ids)), now)
	}
	r.to = p.ids[i]
}

// maxUses is the number of uses of one probe response, by the formula of the paper.
func (p *prequal) maxUses() float64 {
	const delta, removals = 1, 1
	surplus := (1-float64(prequalPool)/float64(len(p.ids)))*prequalProbes - removals
	if surplus <= 0 {
		return prequalPool // the formula is for more endpoints
	}
	return max(1, (1+delta)/surplus)
}

// probe sends one probe. Its response arrives at once, or never from an unreachable endpoint.
func (p *prequal) probe(i int, now time.Duration) {
	if p.unreachable(p.ids[i], now) {
		return
	}
	b := p.tier.backends[p.ids[i]]
	n := b.inFlight()
	p.recent[p.probes%len(p.recent)] = n
	p.probes++
	p.pool = slices.DeleteFunc(p.pool, func(old probed) bool { return old.place == i })
	if len(p.pool) == prequalPool {
		p.pool = p.pool[1:]
	}
	p.pool = append(p.pool, probed{place: i, inFlight: n, latency: b.latencyAt(n), at: now})
}

// latencyAt returns the median of the last latencies with about n requests in flight.
func (b *backend) latencyAt(n int) time.Duration {
	n = min(n, len(b.served)-1)
	for d := range len(b.served) {
		for _, i := range []int{n - d, n + d} {
			if i < 0 || i >= len(b.served) || b.count[i] == 0 {
				continue
			}
			room := b.served[i]
			some := room[:min(b.count[i], len(room))]
			slices.Sort(some)
			return some[len(some)/2]
		}
	}
	return 0
}

func (p *prequal) hot() int {
	const quantile = 0.84
	if p.probes == 0 {
		return 0
	}
	some := slices.Clone(p.recent[:min(p.probes, len(p.recent))])
	slices.Sort(some)
	return some[min(int(quantile*float64(len(some))), len(some)-1)]
}

// better reports whether a is a better choice than b.
func (p *prequal) better(a, b probed) bool {
	switch hotA, hotB := a.inFlight > p.most, b.inFlight > p.most; {
	case hotA != hotB:
		return hotB
	case hotA:
		return a.inFlight < b.inFlight
	}
	return a.latency < b.latency
}

func (p *prequal) best(better func(a, b probed) bool) (best int) {
	for i := range p.pool {
		if better(p.pool[i], p.pool[best]) {
			best = i
		}
	}
	return best
}

// remove removes the worst and the oldest probe in turn.
func (p *prequal) remove() {
	if len(p.pool) < prequalPool {
		return
	}
	i := 0
	if p.worst = !p.worst; p.worst {
		i = p.best(func(a, b probed) bool { return p.better(b, a) })
	}
	p.pool = slices.Delete(p.pool, i, i+1)
}

// c3 ranks all endpoints by R − 1/μ + q³/μ. R is the average latency without the service time,
// 1/μ the average service time, and q = 1 + in flight × clients + the average queue. Responses
// return the queue and the service time.
type c3 struct {
	fleet[c3State]
	env
	random *rand.Rand
}

type c3State struct {
	inFlight, queue, service, wait float64
}

func newC3(e env) policy {
	return &c3{fleet: fleet[c3State]{create: func(time.Duration) *c3State { return new(c3State) }}, env: e, random: source(e.seed)}
}

func (p *c3) send(r *request, now time.Duration) {
	i := p.least(p.random, func(i int) float64 {
		e := p.states[i]
		q := 1 + e.inFlight*float64(p.clients) + e.queue
		return e.wait + q*q*q*e.service
	})
	e := p.states[i]
	e.inFlight++
	r.to, r.onEnd = p.ids[i], func(end time.Duration, _ error) {
		const alpha = 0.9 // the weight of the new value
		e.inFlight--
		took, b := float64(end-now), p.tier.backends[r.to]
		service := min(took, float64(end-r.began))
		e.queue = alpha*float64(len(b.queue)) + (1-alpha)*e.queue
		e.service = alpha*service + (1-alpha)*e.service
		e.wait = alpha*(took-service) + (1-alpha)*e.wait
	}
}

// joinIdleQueue picks an endpoint from the queue of those that have reported a free worker to
// this client, or else a random one.
type joinIdleQueue struct {
	fleet[struct{}]
	env
	random *rand.Rand
	queue  []int
}

func newJoinIdleQueue(e env) policy {
	return &joinIdleQueue{fleet: fleet[struct{}]{create: func(time.Duration) *struct{} { return nil }}, env: e, random: source(e.seed)}
}

func (p *joinIdleQueue) send(r *request, _ time.Duration) {
	for len(p.queue) > 0 {
		i := p.queue[0]
		p.queue = p.queue[1:]
		p.tier.backends[i].idle = false
		if slices.Contains(p.ids, i) {
			r.to = i
			return
		}
	}
	r.to = p.ids[p.random.IntN(len(p.ids))]
}

// oracle knows the queue, the workers and the median time of each backend at each time. It picks
// the one with the earliest expected end. It does not know the size of a request.
type oracle struct {
	fleet[struct{}]
	env
	random *rand.Rand
	dry    request
}

// oracleScan is the number of endpoints up to which the oracle examines all.
const oracleScan = 300

func newOracle(e env) policy {
	return &oracle{fleet: fleet[struct{}]{create: func(time.Duration) *struct{} { return nil }}, env: e, random: source(e.seed)}
}

func (p *oracle) send(r *request, now time.Duration) {
	p.dry.call = &call{tier: r.tier, client: r.client, kind: 0.5, luck: 0.5}
	if n := len(p.ids); n > oracleScan {
		best, lowest := 0, math.Inf(1)
		for range oracleScan / 3 {
			i := p.random.IntN(n)
			if c := p.expected(i, now); c < lowest {
				best, lowest = i, c
			}
		}
		r.to = p.ids[best]
		return
	}
	r.to = p.ids[p.least(p.random, func(i int) float64 { return p.expected(i, now) })]
}

func (p *oracle) expected(i int, now time.Duration) float64 {
	id := p.ids[i]
	b := p.tier.backends[id]
	p.dry.to, p.dry.nth = id, b.got
	a := p.serve(&p.dry, now)
	if a.err != nil {
		return math.Inf(1)
	}
	ahead := max(b.inFlight()+1-b.workers, 0)
	return float64(a.head) + float64(a.end)*float64(ahead)/float64(b.workers)
}
