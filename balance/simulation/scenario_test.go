package simulation

import (
	"math"
	"time"

	"github.com/gotower/gotower/layer"
)

// scenario is a set of backends with their troubles, and a load.
type scenario struct { //nolint:recvcheck // with returns a changed copy
	name string
	what string // the troubles

	rate     float64                         // Poisson arrivals per second
	burst    func(now time.Duration) float64 // multiplies rate; nil for 1
	length   time.Duration                   // of the arrivals
	from     time.Duration                   // figures are of calls from here on
	deadline time.Duration                   // a response with later headers is not good
	clients  int                             // each with its own balancer; 0 means one
	backends int
	workers  int                                        // of each backend
	serve    func(r *request, now time.Duration) answer // called when a worker takes r; must have no effects
	dead     func(backend int, now time.Duration) bool  // unreachable; nil for none

	zone   func(backend int) string // nil without zones; ours is in zone "near"
	weight func(backend int) uint32 // nil for equal weights
	absent []int                    // the backends that do not exist at the beginning
	script []change

	timeout   time.Duration // the caller gives up; 0 for never
	impatient float64       // the share of calls that are canceled after patience
	patience  time.Duration
	retries   int           // of a failed call, with a budget of 20 %
	hedge     time.Duration // a second attempt after this time, with the same budget
	depth     int           // number of tiers; 0 means one

	breaker *layer.BreakerPolicy // of each endpoint; nil for none

	bad    func(backend int) bool // the backends with a column for their share; nil for none
	extra  func(s *simulation) []figure
	claims []claim

	// price is the share of good responses, in points, that a balancer may lose because it tries
	// an endpoint. A peer that never tries it loses none.
	price float64
}

// change is an update of the set of backends. A backend that joins is a new process.
type change struct {
	at          time.Duration
	join, leave []int
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

func (sc *scenario) unreachable(backend int, now time.Duration) bool {
	return sc.dead != nil && sc.dead(backend, now)
}

// work is a lognormal time with this median.
func work(r *request, median time.Duration, sigma float64) time.Duration {
	return time.Duration(float64(median) * math.Exp(sigma*r.size))
}

func done(after time.Duration) answer { return answer{head: after, end: after} }

func failed(after time.Duration) answer { return answer{end: after, err: errBackend} }

func first(backend int) bool { return backend == 0 }

// usual is ten backends of 5 ms with little load.
func usual(name, what string) scenario {
	return scenario{
		name: name, what: what, rate: 1000, length: 20 * sec, deadline: 100 * ms, backends: 10, workers: 64,
		serve: func(r *request, _ time.Duration) answer { return done(work(r, 5*ms, 0.5)) },
	}
}

// with replaces the answers of the backends in bad while when returns true.
func (sc scenario) with(bad func(int) bool, when func(r *request, now time.Duration) bool, trouble func(a answer) answer) scenario {
	healthy := sc.serve
	sc.bad = bad
	sc.serve = func(r *request, now time.Duration) answer {
		a := healthy(r, now)
		if bad(r.to) && (when == nil || when(r, now)) {
			return trouble(a)
		}
		return a
	}
	return sc
}

func slower(by time.Duration) func(answer) answer {
	return func(a answer) answer { return answer{head: a.head + by, end: a.end + by} }
}

func times(n time.Duration) func(answer) answer {
	return func(a answer) answer { return answer{head: n * a.head, end: n * a.end} }
}

func failing(answer) answer { return failed(ms) }

func erring(answer) answer { return answer{end: ms, err: errApplication} }

func hanging(answer) answer { return done(time.Hour) }

func between(from, to time.Duration) func(*request, time.Duration) bool {
	return func(_ *request, now time.Duration) bool { return now >= from && now < to }
}

func below(n int) func(int) bool { return func(backend int) bool { return backend < n } }

// scenarios returns all scenarios in the order of the page.
func scenarios() []scenario {
	var all []scenario
	for _, group := range [][]scenario{fleets(), rates(), troubles(), work100(), changes(), zones(), callers(), forgiving()} {
		all = append(all, group...)
	}
	return all
}
