package simulation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// goZero is the balancer p2c_ewma of go-zero: an average of latency over 10 s,
// the load √(latency + 1) · (in flight + 1), up to three draws until both of a
// pair have a success above one half, and a loser that was not picked for 1 s
// taken in place of the winner. A change of the set begins everything anew.
type goZero struct {
	fleet[goZeroState]
	random *rand.Rand
}

type goZeroState struct {
	latency, success float64
	inFlight         float64
	ended, picked    time.Duration
}

func newGoZero(seed uint64) policy {
	return &goZero{
		fleet: fleet[goZeroState]{forget: true, fresh: func(time.Duration) *goZeroState {
			return &goZeroState{success: 1000, ended: never, picked: never}
		}},
		random: source(seed),
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
			a, b = 0, 1 // always in this order, and however healthy
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
