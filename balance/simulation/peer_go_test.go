package simulation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// kratos is the selector p2c of go-kratos v2 with its node ewma: averages of
// latency and success over 600 ms, the weight
//
//	success · 10 000 / (√(latency + 5 ms) · in flight)
//
// computed at most every 5 ms. A loser that was not picked for 3 s replaces the
// winner. A change of the set resets all state.
type kratos struct {
	fleet[kratosState]
	random *rand.Rand
}

type kratosState struct {
	latency, success float64
	inFlight         float64 // plus one
	slots            [200]time.Duration
	requests         int
	ended            time.Duration // the last one
	picked           time.Duration
	weight           float64
	weighed          time.Duration
}

const never = -time.Hour

func newKratos(e env) policy {
	return &kratos{
		fleet: fleet[kratosState]{forget: true, create: func(time.Duration) *kratosState {
			return &kratosState{success: 1000, inFlight: 1, picked: never, weighed: never, ended: never}
		}},
		random: source(e.seed),
	}
}

func (p *kratos) send(r *request, now time.Duration) {
	i, other := p.pair(p.random)
	if p.states[other].effective(now) > p.states[i].effective(now) {
		i, other = other, i
	}
	if now-p.states[other].picked > 3*time.Second {
		i = other
	}
	e := p.states[i]
	e.picked = now
	e.inFlight++
	e.requests++
	slot := &e.slots[e.requests%len(e.slots)]
	own := *slot == 0
	if own {
		*slot = now
	}
	r.to, r.onEnd = p.ids[i], func(end time.Duration, err error) {
		if own {
			*slot = 0
		}
		e.record(end-now, end, err)
	}
}

func (e *kratosState) record(took, now time.Duration, err error) {
	e.inFlight--
	w := math.Exp(-float64(now-e.ended) / float64(600*time.Millisecond))
	e.ended = now
	if e.latency == 0 {
		w = 0
	}
	e.latency = math.Floor(e.latency*w + float64(took)*(1-w))
	success := 1000.0
	if err != nil { // also for a canceled request
		success = 0
	}
	e.success = math.Floor(e.success*w + success*(1-w))
}

func (e *kratosState) effective(now time.Duration) float64 {
	if now-e.weighed > 5*time.Millisecond {
		e.weight, e.weighed = math.Floor(e.success)*10_000/e.load(now), now
	}
	return e.weight
}

func (e *kratosState) load(now time.Duration) float64 {
	if e.latency == 0 {
		return float64(100*time.Microsecond) * e.inFlight
	}
	latency := max(e.latency, e.predict(now)) + float64(5*time.Millisecond)
	return math.Floor(math.Sqrt(latency)) * e.inFlight
}

// predict is the mean age of those in flight that are late, if most are.
func (e *kratosState) predict(now time.Duration) float64 {
	var late, all int
	var sum float64
	for _, start := range e.slots {
		if start == 0 {
			continue
		}
		all++
		if age := float64(now - start); age > e.latency {
			late++
			sum += age
		}
	}
	if late >= all/2+1 {
		return sum / float64(late)
	}
	return 0
}

// goZero is the balancer p2c_ewma of go-zero. Latency is an average over 10 s, and the load is
// √(latency + 1) · (in flight + 1). Up to three pairs are drawn, until both of a pair have a success
// above one half. A loser that was not picked for 1 s replaces the winner. A change of the set
// resets everything.
type goZero struct {
	fleet[goZeroState]
	random *rand.Rand
}

type goZeroState struct {
	latency, success float64
	inFlight         float64
	ended, picked    time.Duration
}

func newGoZero(e env) policy {
	return &goZero{
		fleet: fleet[goZeroState]{forget: true, create: func(time.Duration) *goZeroState {
			return &goZeroState{success: 1000, ended: never, picked: never}
		}},
		random: source(e.seed),
	}
}

func (p *goZero) send(r *request, now time.Duration) {
	i := p.choose(now)
	e := p.states[i]
	e.inFlight++
	r.to, r.onEnd = p.ids[i], func(end time.Duration, err error) { e.record(end-now, end, err) }
}

func (p *goZero) choose(now time.Duration) int {
	var a, b int
	for range 3 {
		a, b = p.pair(p.random)
		if len(p.ids) == 2 {
			a, b = 0, 1 // without a look at their health
			break
		}
		if p.states[a].success > 500 && p.states[b].success > 500 {
			break
		}
	}
	if p.states[a].load() > p.states[b].load() {
		a, b = b, a
	}
	if now-p.states[b].picked > time.Second {
		a = b
	}
	p.states[a].picked = now
	return a
}

func (e *goZeroState) load() float64 { return math.Floor(math.Sqrt(e.latency+1)) * (e.inFlight + 1) }

func (e *goZeroState) record(took, now time.Duration, err error) {
	e.inFlight--
	w := math.Exp(-float64(now-e.ended) / float64(10*time.Second))
	e.ended = now
	if e.latency == 0 {
		w = 0
	}
	e.latency = math.Floor(e.latency*w + float64(took)*(1-w))
	success := 1000.0
	if err != nil && !errors.Is(err, context.Canceled) {
		success = 0
	}
	e.success = math.Floor(e.success*w + success*(1-w))
}
