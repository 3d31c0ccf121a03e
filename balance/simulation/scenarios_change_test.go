package simulation

import (
	"fmt"
	"time"
)

func series(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// coldFor reports whether a request is among the first n of a process that started after the
// beginning of the run.
func coldFor(n int, from time.Duration) func(r *request, now time.Duration) bool {
	return func(r *request, now time.Duration) bool { return r.nth < n && now >= from }
}

// changes are backends that join and leave.
func changes() []scenario {
	last := func(backend int) bool { return backend == 9 }
	atFirst := func(s *simulation) figure {
		return figure{"requests in its first second", float64(s.count(func(r *request) bool { return r.to == 9 && r.sent < 11*sec })), ""}
	}
	cold := usual("cold join", "one joins nine at 10 s; its first 100 requests take 200 ms longer").with(last, coldFor(100, 0), slower(200*ms))
	cold.absent, cold.script = []int{9}, []change{{at: 10 * sec, join: []int{9}}}
	cold.from, cold.length = 10*sec, 60*sec
	cold.extra = func(s *simulation) []figure {
		return []figure{
			{"cold responses", float64(s.count(func(r *request) bool { return r.to == 9 && r.nth < 100 })), ""},
			atFirst(s), {"at half of its share after", s.returned(last, 10*sec, 5), "s"},
		}
	}
	cold.claims = []claim{atMost("requests in its first second", 50), atLeast("cold responses", 10)}
	cold.price = 0.2 // 100 of 50 000

	join := usual("warm join", "one joins nine at 10 s, as fast as the others")
	join.absent, join.script, join.from, join.length, join.bad = cold.absent, cold.script, 10*sec, 30*sec, last
	join.extra = func(s *simulation) []figure {
		return []figure{atFirst(s), {"at half of its share after", s.returned(last, 10*sec, 5), "s"}}
	}
	join.claims = []claim{atMost("requests in its first second", 200), atMost("at half of its share after", 10)}

	comes := usual("leaves and joins", "one of ten leaves and joins every 2 s")
	comes.bad = first
	for t := 2 * sec; t < comes.length; t += 4 * sec {
		comes.script = append(comes.script, change{at: t, leave: []int{0}}, change{at: t + 2*sec, join: []int{0}})
	}

	rolling := func(clients, backends int) scenario {
		sc := usual(fmt.Sprintf("rolling restart, %d × %d", clients, backends),
			fmt.Sprintf("%s; each of %d backends restarts for 1 s, and its first 50 requests take 100 ms longer", plural(clients, "client"), backends)).
			with(below(backends), coldFor(50, 2*sec), slower(100*ms))
		sc.clients, sc.backends, sc.rate, sc.bad = clients, backends, 200*float64(backends), nil
		step := 20 * sec / time.Duration(backends)
		for i := range backends {
			t := 2*sec + time.Duration(i)*step
			sc.script = append(sc.script, change{at: t, leave: []int{i}}, change{at: t + sec, join: []int{i}})
		}
		sc.length = 25 * sec
		sc.price = 0.5
		return sc
	}

	scale := usual("autoscaling", "10 backends of 4 workers; 10 more join at 5 s, as the load doubles, and leave at 15 s")
	scale.backends, scale.workers, scale.absent, scale.rate = 20, 4, series(10, 20), 4500
	scale.script = []change{{at: 5 * sec, join: series(10, 20)}, {at: 15 * sec, leave: series(10, 20)}}

	replaced := usual("full replacement", "all of 20 backends are replaced at 10 s; 10 clients")
	replaced.backends, replaced.absent, replaced.clients, replaced.workers, replaced.rate = 40, series(20, 40), 10, 4, 8000
	replaced.script = []change{{at: 10 * sec, join: series(20, 40), leave: series(0, 20)}}
	return []scenario{cold, join, comes, rolling(1, 10), rolling(10, 100), scale, replaced}
}

const near, far = "near", "far"

// zones are near and far backends. Only ours knows the zones. The others see that the far ones
// take longer.
func zones() []scenario {
	isFar := func(backend int) bool { return backend >= 5 }
	zoned := func(load int, by time.Duration) scenario {
		sc := usual(fmt.Sprintf("zones, %d %%", load), fmt.Sprintf(
			"five near and five far backends of 4 workers, the far ones take 2 ms longer; %d %% of the capacity of the near ones", load)).with(isFar, nil, slower(by))
		sc.rate, sc.workers = float64(load)*35.3, 4
		sc.length = max(10*sec, time.Duration(40_000/sc.rate*float64(sec)))
		sc.zone = func(backend int) string {
			if isFar(backend) {
				return far
			}
			return near
		}
		return sc
	}
	quiet, busy, over := zoned(5, 2*ms), zoned(85, 2*ms), zoned(140, 2*ms)
	quiet.claims = []claim{badBelow(2)}
	busy.claims = []claim{p99AtMost(30), goodAtLeast(99.9), badBelow(30)}
	over.claims = []claim{p99AtMost(30), goodAtLeast(99.9)}

	weighted := usual("weights by speed", "ten backends of 4 workers with 2 to 20 ms; the weight of each is proportional to its speed; only ours knows the weights")
	weighted.rate, weighted.workers, weighted.length = 2700, 4, 15*sec
	median := func(backend int) time.Duration { return time.Duration(2+2*backend) * ms }
	weighted.serve = func(r *request, _ time.Duration) answer { return done(work(r, median(r.to), 0.5)) }
	weighted.weight = func(backend int) uint32 { return uint32(200_000 / (2 + 2*backend)) }
	return []scenario{quiet, busy, over, weighted}
}
