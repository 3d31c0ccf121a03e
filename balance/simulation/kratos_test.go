package simulation

import (
	"math"
	"math/rand/v2"
	"time"
)

// kratos is the selector p2c of go-kratos v2 with its node ewma: averages of
// latency and success over 600 ms, the weight
//
//	success · 10 000 / (√(latency + 5 ms) · in flight)
//
// looked up at most every 5 ms, and a loser that was not picked for 3 s taken
// in place of the winner. A change of the set begins everything anew.
type kratos struct {
	fleet[kratosState]
	random *rand.Rand
}

type kratosState struct {
	latency, success float64
	inFlight         float64 // one more than there are
	slots            [200]time.Duration
	requests         int
	ended            time.Duration // the last one
	picked           time.Duration
	weight           float64
	weighed          time.Duration
}

const never = -time.Hour

func newKratos(seed uint64) policy {
	return &kratos{
		fleet: fleet[kratosState]{forget: true, fresh: func(time.Duration) *kratosState {
			return &kratosState{success: 1000, inFlight: 1, picked: never, weighed: never, ended: never}
		}},
		random: source(seed),
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
	mine := *slot == 0
	if mine {
		*slot = now
	}
	r.to, r.onEnd = p.ids[i], func(end time.Duration, err error) {
		if mine {
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
	if err != nil { // a caller who left, too
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
