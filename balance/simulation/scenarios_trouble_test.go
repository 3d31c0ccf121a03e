package simulation

import (
	"fmt"
	"time"
)

// troubles are backends that fail, hang, pause or are slow.
func troubles() []scenario {
	failures := func(s *simulation) figure {
		return figure{"failures", float64(s.count(func(r *request) bool { return r.err != nil })), ""}
	}
	slow := usual("one slow", "one of ten takes 100 ms longer").with(first, nil, slower(100*ms))
	slow.claims = []claim{badBelow(3)}
	fails := usual("one fails", "one of ten returns an error after 1 ms").with(first, nil, failing)
	fails.claims = []claim{badBelow(3)}
	stalls := usual("one stalls", "one of ten takes 1 s longer from 15 s to 25 s").with(first, between(15*sec, 25*sec), slower(sec))
	stalls.workers, stalls.length = 256, 40*sec
	part := usual("one fails in part", "one of ten fails 30 % of its requests").
		with(first, func(r *request, _ time.Duration) bool { return r.luck < 0.3 }, failing)
	all := usual("all fail in part", "all of ten fail 25 % of their requests").
		with(below(10), func(r *request, _ time.Duration) bool { return r.luck < 0.25 }, failing)
	all.bad = nil

	outage := usual("outage and return", "one of ten returns errors after 1 ms from 10 s to 25 s").with(first, between(10*sec, 25*sec), failing)
	outage.length = 60 * sec
	outage.extra = func(s *simulation) []figure {
		return []figure{failures(s), {"back at half of its share after", s.returned(first, 25*sec, 5), "s"}}
	}
	outage.claims = []claim{atMost("failures", 50), atMost("back at half of its share after", 30)}

	heals := usual("healing", "one of five takes 100 ms longer until 20 s").with(first, between(0, 20*sec), slower(100*ms))
	heals.backends, heals.rate, heals.length = 5, 500, 60*sec
	heals.extra = func(s *simulation) []figure {
		return []figure{
			{"share while slow", 100 * s.share(first, 2*sec, 20*sec), "%"},
			{"back above 15 % after", s.returned(first, 20*sec, 15), "s"},
			{"share from 50 s on", 100 * s.share(first, 50*sec, 60*sec), "%"},
		}
	}
	heals.claims = []claim{
		atMost("share while slow", 3), atMost("back above 15 % after", 30), atLeast("share from 50 s on", 15),
	}
	flaps := usual("flapping", "one of ten takes 100 ms longer in every other 3 s").
		with(first, func(_ *request, now time.Duration) bool { return now/(3*sec)%2 == 1 }, slower(100*ms))
	flaps.length = 42 * sec

	third := usual("loss of a third", "33 of 99 refuse connections from 10 s to 30 s; one client").with(below(33), between(10*sec, 30*sec), failing)
	third.backends, third.rate, third.length = 99, 2000, 50*sec
	third.dead = func(backend int, now time.Duration) bool { return backend < 33 && now >= 10*sec && now < 30*sec }
	third.extra = func(s *simulation) []figure {
		return []figure{failures(s), {"back at half of its share after", s.returned(below(33), 30*sec, 16.7), "s"}}
	}
	third10 := third
	third10.name, third10.what, third10.clients = "loss of a third, 10 clients", "33 of 99 refuse connections from 10 s to 30 s; ten clients", 10

	return append([]scenario{slow, fails, stalls, part, all, outage, heals, flaps, third, third10}, append(hangs(), pauses()...)...)
}

// hangs are backends that do not respond, with deadlines of the callers.
func hangs() []scenario {
	var all []scenario
	for _, timeout := range []time.Duration{200 * ms, sec} {
		sc := usual(fmt.Sprintf("one hangs, %v", timeout), fmt.Sprintf("one of ten never responds; callers give up after %v", timeout)).with(first, nil, hanging)
		sc.timeout = timeout
		all = append(all, sc)
	}
	thin := usual("one hangs, 20 req/s", "one of ten never responds; callers give up after 500 ms; 20 requests per second").with(first, nil, hanging)
	thin.timeout, thin.rate, thin.length = 500*ms, 20, 500*sec
	return append(all, thin)
}

// pauses are stop-the-world garbage collections of 200 ms in each 5 s.
func pauses() []scenario {
	const period, pause = 5 * sec, 200 * ms
	random := source(5)
	var offsets [16][20]time.Duration
	for i := range offsets {
		for j := range offsets[i] {
			offsets[i][j] = time.Duration(random.Int64N(int64(period - pause)))
		}
	}
	at := map[string]func(backend, cycle int) time.Duration{
		"staggered":  func(backend, _ int) time.Duration { return time.Duration(backend) * period / 16 },
		"random":     func(backend, cycle int) time.Duration { return offsets[backend][cycle%20] },
		"correlated": func(backend, _ int) time.Duration { return time.Duration(backend/8) * period / 2 },
	}
	var all []scenario
	for _, kind := range []string{"staggered", "random", "correlated"} {
		sc := usual("pauses, "+kind, "each of 16 backends pauses for 200 ms in every 5 s; "+kind)
		sc.backends, sc.length, sc.workers, sc.rate = 16, 40*sec, 8, 2000
		plain := sc.serve
		sc.serve = func(r *request, now time.Duration) answer {
			a := plain(r, now)
			start := now/period*period + at[kind](r.to, int(now/period))
			for range 2 { // this pause, or the next one
				if now < start+pause && now+a.end > start {
					return done(a.end + pause - max(now-start, 0))
				}
				start = (now/period+1)*period + at[kind](r.to, int(now/period)+1)
			}
			return a
		}
		all = append(all, sc)
	}
	return all
}

// work100 are requests of which 1 % are 100 times dearer.
func work100() []scenario {
	var all []scenario
	for _, size := range []struct{ clients, backends int }{{1, 16}, {1, 100}, {100, 100}} {
		sc := usual(fmt.Sprintf("1 %% dear, %d × %d", size.clients, size.backends),
			fmt.Sprintf("%s on %d backends with 4 workers; 1 %% of the requests take 100 times as long", plural(size.clients, "client"), size.backends))
		sc.clients, sc.backends, sc.workers = size.clients, size.backends, 4
		plain := sc.serve
		sc.serve = func(r *request, now time.Duration) answer {
			a := plain(r, now)
			if r.kind < 0.01 {
				a = done(100 * a.end)
			}
			return a
		}
		sc.rate = 0.6 * 4 * float64(size.backends) / (0.00567 * 1.99)
		sc.length = max(8*sec, time.Duration(40_000/sc.rate*float64(sec)))
		sc.from = 2 * sec
		all = append(all, sc)
	}
	streams := usual("long streams", "a fifth of the responses have headers after 5 ms and their end after 20 s; a stream holds one of 128 workers")
	streams.rate, streams.length, streams.from, streams.workers = 250, 100*sec, 30*sec, 128
	plain := streams.serve
	streams.serve = func(r *request, now time.Duration) answer {
		if r.kind < 0.2 {
			return answer{head: 5 * ms, end: 20 * sec}
		}
		return plain(r, now)
	}
	streams.claims = []claim{even(4)}
	return append(all, streams, tails(), bursts())
}

// tails is a network that loses packets on the way to some backends.
func tails() scenario {
	sc := usual("tails of a third", "5 % of the requests to ten of thirty backends take 200 ms longer, as after a retransmission").
		with(below(10), func(r *request, _ time.Duration) bool { return r.luck < 0.05 }, slower(200*ms))
	sc.backends, sc.rate = 30, 3000
	return sc
}

// bursts are longer than the queues of the backends can hide.
func bursts() scenario {
	sc := fleetOf(1, 20, 50, false)
	sc.name, sc.what = "bursts", "20 equal backends with 4 workers at 50 % of their capacity, and at 300 % for 200 ms in every 2 s"
	sc.deadline, sc.length = 500*ms, 40*sec
	sc.burst = func(now time.Duration) float64 {
		if now%(2*sec) < 200*ms {
			return 6
		}
		return 1
	}
	return sc
}
