package simulation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// peak is the family of tower's load::peak_ewma. It draws two and picks the one with the lower
// latency × (in flight + 1). Both end with the headers of a response.
type peak struct {
	fleet[peakState]
	peakRules
	random *rand.Rand
}

type peakRules struct {
	first   time.Duration // the latency of a new endpoint; 0 is the rule of Finagle, see cost
	pure    bool          // a read does not write the decayed value back
	penalty time.Duration // the least latency of a failure
	accrual *accrual
}

const peakDecay = float64(10 * time.Second)

type peakState struct {
	ewma    float64
	at      time.Duration
	pending float64
	sampled bool
	health  accrualState
}

func newTower(e env) policy { return newPeak(e, peakRules{first: 30 * ms}) }

var linkerdAccrual = &accrual{after: 7, least: time.Second, most: time.Minute}

func newLinkerd(e env) policy { return newPeak(e, peakRules{first: 30 * ms, accrual: linkerdAccrual}) }

func newLoadBiaser(e env) policy {
	return newPeak(e, peakRules{first: sec, pure: true, penalty: 5 * sec, accrual: linkerdAccrual})
}

func newFinagle(e env) policy {
	return newPeak(e, peakRules{accrual: &accrual{after: 5, least: 5 * time.Second, most: 5 * time.Minute}})
}

func newPeak(e env, rules peakRules) policy {
	return &peak{
		fleet: fleet[peakState]{create: func(now time.Duration) *peakState {
			return &peakState{ewma: float64(rules.first), at: now}
		}},
		peakRules: rules, random: source(e.seed),
	}
}

func (p *peak) send(r *request, now time.Duration) {
	a := p.ready(now, -1)
	if b := p.ready(now, a); a < 0 {
		a, _ = p.pair(p.random) // no endpoint is ready
	} else if b >= 0 && p.cost(p.states[b], now) < p.cost(p.states[a], now) {
		a = b
	}
	e := p.states[a]
	e.pending++
	e.health.probing = e.health.wait > 0
	sampled := false
	sample := func(now time.Duration, atLeast time.Duration) {
		if !sampled {
			sampled = true
			e.pending--
			p.record(e, float64(max(now-r.sent, atLeast)), now)
		}
	}
	r.to, r.onHead = p.ids[a], func(now time.Duration) { sample(now, 0) }
	r.onEnd = func(now time.Duration, err error) {
		penalty := p.penalty
		if err == nil || errors.Is(err, context.Canceled) {
			penalty = 0
		} else {
			penalty = max(penalty, time.Duration(e.ewma))
		}
		if p.penalty == 0 {
			penalty = 0
		}
		sample(now, penalty)
		p.accrual.judge(&e.health, now, err, p.random)
	}
}

// ready draws one that is ready and is not at the place not.
func (p *peak) ready(now time.Duration, not int) int {
	for range 8 * len(p.ids) {
		i := p.random.IntN(len(p.ids))
		if i != not && p.states[i].health.ready(now) {
			return i
		}
	}
	return -1
}

func (p *peak) cost(e *peakState, now time.Duration) float64 {
	if p.first == 0 && !e.sampled {
		if e.pending > 0 { // one probe at a time
			return math.Exp2(47) + e.pending
		}
		return 0
	}
	value := e.ewma * math.Exp(-float64(now-e.at)/peakDecay)
	if !p.pure {
		e.ewma, e.at = value, now
	}
	return value * (e.pending + 1)
}

func (p *peak) record(e *peakState, took float64, now time.Duration) {
	w := math.Exp(-float64(now-e.at) / peakDecay)
	old := e.ewma
	if p.pure {
		old *= w
	}
	if took > old {
		e.ewma = took
	} else {
		e.ewma = e.ewma*w + took*(1-w)
	}
	e.at, e.sampled = now, true
}

// accrual ejects an endpoint after consecutive failures, and admits one probe after a wait that
// doubles each time.
type accrual struct {
	after       int
	least, most time.Duration
}

type accrualState struct {
	failed  int
	wait    time.Duration // 0 if the endpoint is not ejected
	until   time.Duration
	probing bool
}

func (h *accrualState) ready(now time.Duration) bool {
	return h.wait == 0 || !h.probing && now >= h.until
}

func (a *accrual) judge(h *accrualState, now time.Duration, err error, random *rand.Rand) {
	switch {
	case a == nil:
	case errors.Is(err, context.Canceled):
		h.probing = false
	case err == nil:
		*h = accrualState{}
	default:
		if h.failed++; h.failed >= a.after && (h.probing || h.wait == 0) {
			h.wait = min(max(2*h.wait, a.least), a.most)
			h.until = now + h.wait + time.Duration(random.Float64()*float64(h.wait)/2)
			h.probing = false
		}
	}
}

// envoy is least_request of Envoy with two choices, outlier detection by consecutive errors and
// by success rate, and the panic threshold.
type envoy struct {
	fleet[envoyState]
	random *rand.Rand
	swept  time.Duration
}

type envoyState struct {
	load, row, all, good int
	ejected              bool
	times                int
	until                time.Duration
}

func newEnvoy(e env) policy {
	return &envoy{fleet: fleet[envoyState]{create: func(time.Duration) *envoyState { return new(envoyState) }}, random: source(e.seed)}
}

func (p *envoy) send(r *request, now time.Duration) {
	const interval, panicThreshold = 10 * sec, 0.5
	for ; now-p.swept >= interval; p.swept += interval {
		p.sweep(now)
	}
	healthy := make([]int, 0, len(p.ids))
	for i, e := range p.states {
		if !e.ejected {
			healthy = append(healthy, i)
		}
	}
	if float64(len(healthy)) < panicThreshold*float64(len(p.ids)) {
		healthy = healthy[:0]
		for i := range p.ids {
			healthy = append(healthy, i)
		}
	}
	a, b := healthy[p.random.IntN(len(healthy))], healthy[p.random.IntN(len(healthy))]
	if p.states[b].load < p.states[a].load {
		a = b
	}
	e := p.states[a]
	e.load++
	r.to, r.onEnd = p.ids[a], func(now time.Duration, err error) {
		e.load--
		switch {
		case errors.Is(err, context.Canceled):
			return
		case err != nil:
			if e.row++; e.row >= 5 {
				p.eject(e, now)
			}
		default:
			e.row = 0
			e.good++
		}
		e.all++
	}
}

// eject ejects e unless a tenth of the endpoints are ejected.
func (p *envoy) eject(e *envoyState, now time.Duration) {
	const base, longest, share = 30 * sec, 300 * sec, 0.1
	ejected := 0
	for _, o := range p.states {
		if o.ejected {
			ejected++
		}
	}
	if e.ejected || ejected > 0 && float64(ejected+1) > share*float64(len(p.states)) {
		return
	}
	e.ejected, e.times, e.row = true, e.times+1, 0
	e.until = now + min(time.Duration(e.times)*base, longest)
}

// sweep ends ejections and compares the success rates of the last interval.
func (p *envoy) sweep(now time.Duration) {
	const volume, hosts, factor = 100, 5, 1.9
	var rates []float64
	var which []*envoyState
	for _, e := range p.states {
		if e.ejected && now >= e.until {
			e.ejected = false
		} else if !e.ejected && e.times > 0 {
			e.times--
		}
		if e.all >= volume {
			rates, which = append(rates, float64(e.good)/float64(e.all)), append(which, e)
		}
		e.all, e.good = 0, 0
	}
	if len(rates) < hosts {
		return
	}
	var mean, variance float64
	for _, r := range rates {
		mean += r / float64(len(rates))
	}
	for _, r := range rates {
		variance += (r - mean) * (r - mean) / float64(len(rates))
	}
	for i, r := range rates {
		if r < mean-factor*math.Sqrt(variance) {
			p.eject(which[i], now)
		}
	}
}
