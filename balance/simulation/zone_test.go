package simulation

import "time"

const near, far = "near", "far"

// zones are near and far backends. Only ours knows which is which: the others
// see that the far ones take longer.
func zones(cut func(time.Duration) time.Duration) []scenario {
	zoned := func(name, what string, rate float64) scenario {
		sc := usual(name, what)
		sc.rate, sc.workers, sc.length = rate, 4, cut(time.Duration(40_000/rate*float64(sec)))
		sc.zone = func(backend int) string {
			if backend < 5 {
				return near
			}
			return far
		}
		sc.bad = func(backend int) bool { return backend >= 5 }
		alike := sc.serve
		sc.serve = func(r *request, now time.Duration) answer {
			a := alike(r, now)
			if sc.bad(r.to) {
				a = done(a.end + 2*ms)
			}
			return a
		}
		return sc
	}
	quiet := zoned("zones, quiet", "five near and five far of 4 workers, the far ones take 2 ms longer; 5 % of the capacity of the near ones", 200)
	quiet.claims = []claim{badBelow(2)}
	busy := zoned("zones, busy", "five near and five far of 4 workers, the far ones take 2 ms longer; 140 % of the capacity of the near ones", 5000)
	busy.apart = true
	busy.claims = []claim{p99AtMost(30), goodAtLeast(99.9)}
	return []scenario{quiet, busy}
}
