package simulation

import (
	"math"
	"time"
)

// scenario is some backends, their troubles, and a load.
type scenario struct {
	name string
	what string // the troubles, for the reader of the table

	rate     float64       // requests a second, Poisson
	length   time.Duration // of the arrivals
	from     time.Duration // figures are of requests from here on
	deadline time.Duration // a response whose head comes later is not good
	clients  int           // each with a balancer of its own; 0 means one
	backends int
	workers  int                                              // of each backend
	serve    func(r *request, now time.Duration) (out answer) // asked when a worker takes r

	zone func(backend int) string // nil: all are alike; ours is in zone "near"

	absent  []int // not there at the beginning
	script  []change
	streams float64 // the part of the requests that are streams

	impatient float64 // the part of the requests whose cancellations
	patience  time.Duration

	bad    func(backend int) bool // the ones whose share is told; nil: none
	extra  func(log []*request) []figure
	claims []claim

	// apart is a scenario where ours buys something else than latency, so that
	// the peers' is no measure for it.
	apart bool

	// price is the part of the good responses, in points, that may be lost
	// because an endpoint has to be tried to be known: a peer that never tries
	// it loses none.
	price float64
}

// change is an update of the set of backends.
type change struct {
	at          time.Duration
	join, leave []int
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// work is a lognormal time with this median: r's size says where in it r is.
func work(r *request, median time.Duration, sigma float64) time.Duration {
	return time.Duration(float64(median) * math.Exp(sigma*r.size))
}

func done(after time.Duration) answer { return answer{head: after, end: after} }

func first(backend int) bool { return backend == 0 }

// usual is ten backends of 5 ms, far from busy.
func usual(name, what string) scenario {
	return scenario{
		name: name, what: what, rate: 1000, length: 40 * sec, deadline: 100 * ms, backends: 10, workers: 64,
		serve: func(r *request, _ time.Duration) answer { return done(work(r, 5*ms, 0.5)) },
		bad:   first,
	}
}

// slower makes one backend slower by that much, as long as when holds.
func (sc scenario) slower(backend int, by time.Duration, when func(r *request, now time.Duration) bool) scenario {
	healthy := sc.serve
	sc.serve = func(r *request, now time.Duration) answer {
		a := healthy(r, now)
		if r.to == backend && (when == nil || when(r, now)) {
			a.head += by
			a.end += by
		}
		return a
	}
	return sc
}

func between(from, to time.Duration) func(*request, time.Duration) bool {
	return func(_ *request, now time.Duration) bool { return now >= from && now < to }
}

// scenarios are all of them. Short ones are for the test run: those whose
// script allows it take fewer requests.
func scenarios(short bool) []scenario {
	cut := func(d time.Duration) time.Duration {
		if short {
			return d / 3
		}
		return d
	}
	all := shared(cut)
	all = append(all, equals()...)
	all = append(all, failures(cut)...)
	all = append(all, changes()...)
	all = append(all, zones(cut)...)
	all = append(all, odd(cut)...)
	return all
}

// shared are the seven that the peers' own code was measured with, and one
// that has too many endpoints for a scan.
func shared(cut func(time.Duration) time.Duration) []scenario {
	slow := usual("one slow", "one of ten takes 100 ms longer").slower(0, 100*ms, nil)
	slow.length = cut(slow.length)
	slow.claims = []claim{badBelow(3)}

	fails := usual("one fails", "one of ten returns an error after 1 ms")
	fails.length = cut(fails.length)
	healthy := fails.serve
	fails.serve = func(r *request, now time.Duration) answer {
		if r.to == 0 {
			return answer{end: ms, err: errBackend}
		}
		return healthy(r, now)
	}
	fails.claims = []claim{badBelow(3)}

	stalls := usual("one stalls", "one of ten takes 1 s longer from 15 s to 25 s").slower(0, sec, between(15*sec, 25*sec))
	stalls.workers = 256

	many := heterogeneous("unequal, 50 clients", "2 to 20 ms, 65 % of capacity, fifty clients with a balancer each", 5530, cut)
	many.clients = 50

	forty := heterogeneous("forty unequal, 85 %", "forty of 2 to 20 ms, 8 workers each, 85 % of capacity", 4*7230, cut)
	forty.backends, forty.length = 40, 3*sec
	forty.bad = func(backend int) bool { return backend%10 == 9 }
	forty.serve = func(r *request, _ time.Duration) answer {
		return done(work(r, time.Duration(2+2*(r.to%10))*ms, 0.8))
	}

	equal := usual("equal, busy", "ten equal ones of 4 workers, 80 % of capacity")
	equal.rate, equal.length, equal.workers, equal.bad = 4647, 8600*ms, 4, nil
	equal.serve = func(r *request, _ time.Duration) answer { return done(work(r, 5*ms, 0.8)) }
	equal.claims = []claim{even(4)}

	return []scenario{
		slow, fails, stalls,
		heterogeneous("unequal, 65 %", "2 to 20 ms, 8 workers each, 65 % of capacity", 5530, cut),
		heterogeneous("unequal, 85 %", "2 to 20 ms, 8 workers each, 85 % of capacity: two choices can balance 78 %", 7230, cut),
		many, forty, equal,
	}
}

func heterogeneous(name, what string, rate float64, cut func(time.Duration) time.Duration) scenario {
	sc := usual(name, what)
	sc.rate, sc.workers, sc.length = rate, 8, cut(time.Duration(40_000/rate*float64(sec)))
	sc.bad = func(backend int) bool { return backend == 9 }
	sc.serve = func(r *request, _ time.Duration) answer {
		return done(work(r, time.Duration(2+2*r.to)*ms, 0.8))
	}
	return sc
}

// equals have nothing wrong: the shares are what counts.
func equals() []scenario {
	idle := func(name string, n int, rate float64) scenario {
		sc := usual(name, "equal ones, rarely two concurrent requests")
		sc.backends, sc.rate, sc.length, sc.from, sc.bad = n, rate, 600*sec, 100*sec, nil
		sc.claims = []claim{even(4)}
		return sc
	}
	busy := usual("five equal, busy", "five equal ones of 4 workers, 80 % of capacity")
	busy.backends, busy.rate, busy.length, busy.workers, busy.bad = 5, 2323, 17200*ms, 4, nil
	busy.serve = func(r *request, _ time.Duration) answer { return done(work(r, 5*ms, 0.8)) }
	busy.claims = []claim{even(4)}
	return []scenario{idle("five equal, idle", 5, 10), idle("ten equal, idle", 10, 20), busy}
}
