package simulation

import (
	"fmt"
	"time"
)

// fleets are healthy backends, by the number of clients and endpoints, the capacity and the load.
func fleets() []scenario {
	var all []scenario
	for _, size := range []struct{ clients, backends, load int }{
		{1, 5, 80}, {1, 10, 65}, {1, 10, 85}, {1, 40, 85}, {1, 100, 85}, {50, 10, 65},
		{10, 16, 60}, {10, 16, 85}, {10, 16, 95}, {100, 16, 60}, {100, 16, 85}, {100, 16, 95},
		{10, 100, 60}, {10, 100, 85}, {10, 100, 95}, {100, 100, 60}, {100, 100, 85}, {100, 100, 95},
		{10, 2000, 60}, {10, 2000, 85}, {10, 2000, 95}, {100, 2000, 60}, {100, 2000, 85}, {100, 2000, 95},
	} {
		for _, uneven := range []bool{false, true} {
			all = append(all, fleetOf(size.clients, size.backends, size.load, uneven))
		}
	}
	single := fleetOf(1, 100, 30, false)
	single.name, single.what = "1 × 100, one worker, 30 %", "1 client on 100 equal backends with 1 worker at 30 % of their capacity"
	single.workers, single.rate, single.length = 1, single.rate/4, 60*sec
	return append(all, single)
}

// fleetOf has backends with a mean time of 60 ms, or of 10 to 110 ms.
func fleetOf(clients, backends, load int, uneven bool) scenario {
	kind := "equal"
	median := func(int) time.Duration { return 44 * ms }
	capacity := float64(backends) / 0.0606
	if uneven {
		kind = "uneven"
		median = func(backend int) time.Duration { return time.Duration(8+72*(backend*7%11)/10) * ms }
		capacity = 0
		for i := range backends {
			capacity += 1 / (median(i).Seconds() * 1.377)
		}
	}
	workers := 4
	if backends > 1000 {
		workers = 2
	}
	sc := usual(fmt.Sprintf("%d × %d, %s, %d %%", clients, backends, kind, load),
		fmt.Sprintf("%s on %s %s backends with %d workers at %d %% of their capacity", plural(clients, "client"), thousands(backends), kind, workers, load))
	sc.clients, sc.backends, sc.workers, sc.deadline = clients, backends, workers, sec
	sc.rate = capacity * float64(workers) * float64(load) / 100
	sc.from = 2 * sec
	sc.length = sc.from + max(3*sec, time.Duration(40_000/sc.rate*float64(sec)))
	if backends > 1000 {
		sc.from, sc.length = sec, 2200*ms
	}
	sc.serve = func(r *request, _ time.Duration) answer { return done(work(r, median(r.to), 0.8)) }
	return sc
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d %03d", n/1000, n%1000)
}

// rates are clients with little traffic.
func rates() []scenario {
	thin := func(name, what string) scenario {
		sc := usual("1 req/s, "+name, "20 clients with one request per second on 100 backends; ten "+what)
		sc.clients, sc.backends, sc.rate, sc.length, sc.from, sc.deadline, sc.timeout = 20, 100, 20, 1500*sec, 500*sec, 200*ms, sec
		return sc
	}
	idle := func(n int, rate float64) scenario {
		sc := usual(fmt.Sprintf("%d equal, idle", n), "equal backends, rarely two concurrent requests")
		sc.backends, sc.rate, sc.length, sc.from = n, rate, 600*sec, 100*sec
		sc.claims = []claim{even(4)}
		return sc
	}
	two := usual("two, 1 req/s", "two backends with 200 ms and 20 ms").with(first, nil, slower(180*ms)).with(below(2), nil, slower(15*ms))
	two.backends, two.rate, two.length, two.bad = 2, 1, 2000*sec, first
	two.extra = func(s *simulation) []figure {
		return []figure{{"requests to the slow one", float64(s.count(func(r *request) bool { return r.to == 0 })), ""}}
	}
	two.claims = []claim{badBelow(15), atLeast("requests to the slow one", 5)}

	many := usual("10 000 endpoints", "20 000 requests per second; 1 % of the backends take 100 ms longer").with(below(100), nil, slower(100*ms))
	many.backends, many.rate, many.length, many.from, many.workers = 10_000, 20_000, 8*sec, 3*sec, 8
	return []scenario{
		thin("ten fail", "return errors after 1 ms").with(below(10), nil, failing),
		thin("ten hang", "do not respond; callers give up after 1 s").with(below(10), nil, hanging),
		thin("ten slow", "are 20 times slower").with(below(10), nil, times(20)),
		idle(5, 10), idle(10, 20), two, many,
	}
}
