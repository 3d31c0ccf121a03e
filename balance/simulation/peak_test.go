package simulation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// peak is the family of tower's load::peak_ewma: two choices, of which the one
// with the lower latency × (in flight + 1) is taken. Latency and in flight end
// with the head of a response.
type peak struct {
	fleet[peakState]
	rules  peakRules
	random *rand.Rand
}

type peakRules struct {
	first   time.Duration // latency expected of a new endpoint; 0: see cost
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

// newTower is tower's balancer with the defaults that linkerd gives it.
func newTower(seed uint64) policy { return newPeak(seed, peakRules{first: 30 * time.Millisecond}) }

// newLinkerd is tower's with linkerd's failure accrual.
func newLinkerd(seed uint64) policy {
	return newPeak(seed, peakRules{
		first:   30 * time.Millisecond,
		accrual: &accrual{after: 7, least: time.Second, most: time.Minute},
	})
}

// newFinagle is Finagle's P2CPeakEwma with the consecutive part of its failure
// accrual.
func newFinagle(seed uint64) policy {
	return newPeak(seed, peakRules{accrual: &accrual{after: 5, least: 5 * time.Second, most: 5 * time.Minute}})
}

func newPeak(seed uint64, rules peakRules) policy {
	return &peak{
		fleet: fleet[peakState]{fresh: func(now time.Duration) *peakState {
			return &peakState{ewma: float64(rules.first), at: now}
		}},
		rules: rules, random: source(seed),
	}
}

func (p *peak) send(r *request, now time.Duration) {
	a := p.ready(now, -1)
	if b := p.ready(now, a); a < 0 {
		a, _ = p.pair(p.random) // nothing is ready: try anyway
	} else if b >= 0 && p.cost(p.states[b], now) < p.cost(p.states[a], now) {
		a = b
	}
	e := p.states[a]
	e.pending++
	e.health.picked()
	sampled := false
	sample := func(now time.Duration) {
		if !sampled {
			sampled = true
			e.pending--
			e.record(now-r.sent, now)
		}
	}
	r.to, r.onHead = p.ids[a], sample
	r.onEnd = func(now time.Duration, err error) {
		sample(now)
		p.rules.accrual.judge(&e.health, now, err, p.random)
	}
}

// ready draws one that is ready, and is not the one in place not.
func (p *peak) ready(now time.Duration, not int) int {
	for range 8 * len(p.ids) {
		i := p.random.IntN(len(p.ids))
		if i != not && p.states[i].health.ready(now) {
			return i
		}
	}
	return -1
}

// cost writes the faded estimate back, as both libraries do.
func (p *peak) cost(e *peakState, now time.Duration) float64 {
	if p.rules.first == 0 && !e.sampled {
		if e.pending > 0 { // Finagle: one probe, and no more until it is back
			return math.Exp2(47) + e.pending
		}
		return 0
	}
	e.ewma *= math.Exp(-float64(now-e.at) / peakDecay)
	e.at = now
	return e.ewma * (e.pending + 1)
}

func (e *peakState) record(took, now time.Duration) {
	if x := float64(took); x > e.ewma {
		e.ewma = x
	} else {
		w := math.Exp(-float64(now-e.at) / peakDecay)
		e.ewma = e.ewma*w + x*(1-w)
	}
	e.at, e.sampled = now, true
}

// accrual takes an endpoint out after failures in a row, and lets one probe
// through after a wait that doubles each time.
type accrual struct {
	after       int
	least, most time.Duration
}

type accrualState struct {
	failed  int
	wait    time.Duration // 0: closed
	until   time.Duration
	probing bool
}

func (h *accrualState) ready(now time.Duration) bool {
	return h.wait == 0 || !h.probing && now >= h.until
}

func (h *accrualState) picked() { h.probing = h.wait > 0 }

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
