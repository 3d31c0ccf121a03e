package simulation

import "time"

// failures are backends that fail or are slow for a while.
func failures(cut func(time.Duration) time.Duration) []scenario {
	fast := usual("fast failure", "one of ten returns errors after 1 ms from 10 s to 25 s")
	fast.length = 60 * sec
	healthy := fast.serve
	fast.serve = func(r *request, now time.Duration) answer {
		if r.to == 0 && now >= 10*sec && now < 25*sec {
			return answer{end: ms, err: errBackend}
		}
		return healthy(r, now)
	}
	fast.extra = func(log []*request) []figure {
		return []figure{
			{"failures", float64(count(log, func(r *request) bool { return r.err != nil })), ""},
			{"back at half of its share after", returned(log, first, 25*sec, 5), "s"},
		}
	}
	fast.claims = []claim{atMost("failures", 50), atMost("back at half of its share after", 30)}

	heals := usual("healing", "one of five takes 100 ms longer until 20 s").slower(0, 100*ms, between(0, 20*sec))
	heals.backends, heals.rate, heals.length = 5, 500, 60*sec
	heals.extra = func(log []*request) []figure {
		return []figure{
			{"share while slow", 100 * share(log, first, 2*sec, 20*sec), "%"},
			{"back above 15 % after", returned(log, first, 20*sec, 15), "s"},
			{"share from 50 s on", 100 * share(log, first, 50*sec, 60*sec), "%"},
		}
	}
	heals.claims = []claim{
		atMost("share while slow", 3), atMost("back above 15 % after", 30), atLeast("share from 50 s on", 15),
	}

	odd := func(now time.Duration) bool { return now/(3*sec)%2 == 1 }
	flaps := usual("flapping", "one of ten takes 100 ms longer in every other 3 s").
		slower(0, 100*ms, func(_ *request, now time.Duration) bool { return odd(now) })
	flaps.length = 42 * sec
	flaps.extra = func(log []*request) []figure {
		return []figure{{"slow responses", float64(count(log, func(r *request) bool { return r.to == 0 && odd(r.sent) })), ""}}
	}

	two := usual("two, 1 req/s", "two nodes with 200 ms and 20 ms").slower(0, 180*ms, nil)
	two.backends, two.rate, two.length = 2, 1, 2000*sec
	slow := two.serve
	two.serve = func(r *request, now time.Duration) answer {
		a := slow(r, now)
		return done(a.end + 15*ms)
	}
	two.extra = func(log []*request) []figure {
		return []figure{{"requests to the slow one", float64(count(log, func(r *request) bool { return r.to == 0 })), ""}}
	}
	two.claims = []claim{badBelow(15), atLeast("requests to the slow one", 5)}

	thousands := usual("10 000 endpoints", "20 000 req/s, 1 % of the endpoints take 100 ms longer")
	// Long enough that asking each of the slow ones once is no thousandth of all.
	thousands.backends, thousands.rate, thousands.length, thousands.workers = 10_000, 20_000, cut(cut(24*sec)), 8
	thousands.bad = func(backend int) bool { return backend < 100 }
	fine := thousands.serve
	thousands.serve = func(r *request, now time.Duration) answer {
		a := fine(r, now)
		if r.to < 100 {
			a = done(a.end + 100*ms)
		}
		return a
	}
	return []scenario{fast, heals, flaps, two, thousands}
}
