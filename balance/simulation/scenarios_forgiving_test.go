package simulation

import (
	"fmt"
	"time"
)

// forgiving has single failures, errors of the application, little traffic, and deadlines that are
// hardly longer than the latencies.
func forgiving() []scenario {
	small := func(name, what string, backends int, rate float64, requests int) scenario {
		sc := usual(name, what)
		sc.backends, sc.rate, sc.bad = backends, rate, first
		sc.length = time.Duration(float64(requests) / rate * float64(sec))
		return sc
	}
	var all []scenario

	once := small("one failed call", "one of three returns one error after 1000 requests, at about 10 s", 3, 300, 6000)
	once = once.with(first, func(r *request, _ time.Duration) bool { return r.nth == 1000 }, failing)
	once.extra = func(s *simulation) []figure {
		return []figure{
			{"failures", float64(s.count(func(r *request) bool { return r.err != nil })), ""},
			{"share from 12 s on", 100 * s.share(first, 12*sec, 20*sec), "%"},
		}
	}
	once.claims = []claim{atLeast("share from 12 s on", 26.7)}
	all = append(all, once)

	for _, percent := range []float64{0.1, 5} {
		sc := small(fmt.Sprintf("%v %% errors", percent), fmt.Sprintf("each of three returns an error of the application for %v %% of the requests", percent), 3, 300, 30_000)
		sc = sc.with(below(3), func(r *request, _ time.Duration) bool { return r.luck < percent/100 }, erring)
		sc.bad, sc.claims = nil, []claim{even(3.3)} // the busiest has at most 1.1 times the mean
		all = append(all, sc)
	}
	half := small("half fail a tenth", "ten of twenty return an error of the application for 10 % of the requests", 20, 1000, 40_000).
		with(below(10), func(r *request, _ time.Duration) bool { return r.luck < 0.1 }, erring)
	half.claims = []claim{goodAtLeast(99.5)}
	all = append(all, half)

	for _, n := range []int{2, 3} {
		sc := small(fmt.Sprintf("%d at 2 req/s, one fails half", n), fmt.Sprintf("one of %d returns an error for half of the requests", n), n, 2, 4000).
			with(first, func(r *request, _ time.Duration) bool { return r.luck < 0.5 }, failing)
		all = append(all, sc)
	}
	for _, thin := range []struct {
		name     string
		backends int
		rate     float64
		good     float64
	}{{"a minute", 5, 1. / 60, 98.5}, {"in 20 s", 5, 1. / 20, 98.5}, {"in 5 s", 5, 1. / 5, 98.5}, {"a second", 16, 1, 99.6}} {
		sc := small("one request "+thin.name+", one fails", fmt.Sprintf("one of %d returns errors after 1 ms; one request %s", thin.backends, thin.name), thin.backends, thin.rate, 4000).
			with(first, nil, failing)
		sc.claims = []claim{goodAtLeast(thin.good)}
		all = append(all, sc)
	}
	for _, short := range []struct {
		backends int
		timeout  time.Duration
		sigma    float64
		good     float64
	}{{3, 50 * ms, 0.1, 85}, {10, 50 * ms, 0.1, 97}, {3, 75 * ms, 0.15, 99.8}} {
		sc := small(fmt.Sprintf("one of %d hangs, %v", short.backends, short.timeout),
			fmt.Sprintf("one of %d never responds; the others take about 40 ms, and callers give up after %v", short.backends, short.timeout), short.backends, 100, 20_000)
		sc.timeout, sc.deadline = short.timeout, short.timeout
		sc.serve = func(r *request, _ time.Duration) answer {
			if r.to == 0 {
				return hanging(answer{})
			}
			return done(work(r, 40*ms, short.sigma))
		}
		sc.claims = []claim{goodAtLeast(short.good)}
		all = append(all, sc)
	}

	slow := small("slow first response", "the first response of one of two takes 200 ms longer", 2, 200, 12_000).
		with(first, func(r *request, _ time.Duration) bool { return r.nth == 0 }, slower(200*ms))
	slow.extra = func(s *simulation) []figure {
		return []figure{{"back at 40 % of the requests after", s.returned(first, 0, 40), "s"}}
	}
	slow.claims = []claim{atMost("back at 40 % of the requests after", 12)}
	quiet := small("quiet streams", "one of twenty responses has headers after 5 ms and never ends; ten equal backends", 10, 200, 20_000)
	quiet.workers, quiet.bad = 1<<20, nil
	plain := quiet.serve
	quiet.serve = func(r *request, now time.Duration) answer {
		if r.kind < 0.05 {
			return answer{head: 5 * ms, end: 10 * time.Hour}
		}
		return plain(r, now)
	}
	quiet.extra = func(s *simulation) []figure {
		const window = sec
		var most float64
		for from := 40 * sec; from+window <= s.length; from += window {
			for i := range s.scenario.backends {
				most = max(most, 100*s.share(func(b int) bool { return b == i }, from, from+window))
			}
		}
		return []figure{{"greatest share in one second", most, "%"}}
	}
	quiet.claims = []claim{even(2), atMost("greatest share in one second", 50)}
	return append(all, slow, quiet)
}
