package simulation

import "time"

// changes are backends that come and go.
func changes() []scenario {
	cold := usual("cold join", "one joins nine at 10 s; its first 100 requests take 200 ms longer").
		slower(9, 200*ms, func(r *request, _ time.Duration) bool { return r.nth < 100 })
	cold.absent, cold.script = []int{9}, []change{{at: 10 * sec, join: []int{9}}}
	cold.from = 10 * sec
	cold.length = 60 * sec
	cold.bad = func(backend int) bool { return backend == 9 }
	cold.extra = func(log []*request) []figure {
		return []figure{
			{"cold responses", float64(count(log, func(r *request) bool { return r.to == 9 && r.nth < 100 })), ""},
			{"requests in its first second", float64(count(log, func(r *request) bool { return r.to == 9 && r.sent < 11*sec })), ""},
			{"at half of its share after", returned(log, cold.bad, 10*sec, 5), "s"},
		}
	}
	cold.claims = []claim{atMost("requests in its first second", 50), atLeast("cold responses", 10)}
	cold.price = 0.2 // 100 of 50 000

	join := usual("warm join", "one joins nine at 10 s, as fast as the others")
	join.absent, join.script, join.from = []int{9}, []change{{at: 10 * sec, join: []int{9}}}, 10*sec
	join.bad = cold.bad
	join.extra = func(log []*request) []figure {
		return []figure{
			{"requests in its first second", float64(count(log, func(r *request) bool { return r.to == 9 && r.sent < 11*sec })), ""},
			{"at half of its share after", returned(log, cold.bad, 10*sec, 5), "s"},
		}
	}
	join.claims = []claim{atMost("requests in its first second", 200), atMost("at half of its share after", 10)}

	comes := usual("leaves and joins", "one of ten leaves and joins every 2 s")
	for t := 2 * sec; t < comes.length; t += 4 * sec {
		comes.script = append(comes.script, change{at: t, leave: []int{0}}, change{at: t + 2*sec, join: []int{0}})
	}
	comes.extra = func(log []*request) []figure {
		gone := func(now time.Duration) bool { return now/(2*sec)%2 == 1 }
		return []figure{{"requests while removed", float64(count(log, func(r *request) bool { return r.to == 0 && gone(r.sent) })), ""}}
	}
	comes.claims = []claim{atMost("requests while removed", 0)}
	return []scenario{cold, join, comes}
}
