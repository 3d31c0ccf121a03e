package simulation

import (
	"time"

	"github.com/gotower/gotower/layer"
)

// callers cancel, hedge and retry.
func callers() []scenario {
	leaving := usual("cancellations", "half of all requests are canceled after 2 ms; ten equal backends")
	leaving.impatient, leaving.patience = 0.5, 2*ms
	leaving.claims = []claim{even(4)}
	slow := usual("cancellations, one slow", "half of all requests are canceled after 2 ms; one of ten takes 100 ms longer").with(first, nil, slower(100*ms))
	slow.impatient, slow.patience = 0.5, 2*ms
	slow.claims = []claim{badBelow(3)}

	hedged := usual("hedging", "a second attempt after 20 ms; 2 % of the requests take 200 ms at random").
		with(below(10), func(r *request, _ time.Duration) bool { return len(r.attempts) == 1 && r.luck < 0.02 }, slower(200*ms))
	hedged.hedge, hedged.bad = 20*ms, nil
	together := usual("hedging, all slow", "a second attempt after 20 ms; all backends of 4 workers become three times slower from 5 s to 15 s").
		with(below(10), between(5*sec, 15*sec), times(3))
	together.hedge, together.bad, together.workers, together.rate = 20*ms, nil, 4, 1500

	broken := usual("breakers, all slow",
		"each endpoint has a breaker, which opens below 80 % of successes and is ignored while over half are open; all backends of 4 workers become ten times slower from 5 s to 15 s; callers give up after 60 ms").
		with(below(10), between(5*sec, 15*sec), times(10))
	broken.breaker = &layer.BreakerPolicy{MinSuccessRate: 0.8, Backoff: layer.Backoff{Min: sec, Max: time.Minute}}
	broken.timeout, broken.bad, broken.workers, broken.rate, broken.length = 60*ms, nil, 4, 500, 40*sec

	tiers := usual("three tiers with retries", "each request passes three tiers of ten; 30 % of the last tier fail from 5 s to 15 s; two retries with a budget of 20 % at each tier").
		with(below(3), func(r *request, now time.Duration) bool { return r.tier == 2 && now >= 5*sec && now < 15*sec }, failing)
	tiers.depth, tiers.retries, tiers.bad = 3, 2, nil
	tiers.extra = func(s *simulation) []figure {
		sent := 0
		for _, b := range s.tiers[2].backends {
			sent += b.got
		}
		return []figure{{"requests of the last tier per call", float64(sent) / float64(len(s.calls)), "×"}}
	}
	storm := tiers
	storm.name, storm.what = "three tiers, all fail", "the same, but all of the last tier fail half of their requests"
	storm.serve = usual("", "").with(below(10), func(r *request, now time.Duration) bool {
		return r.tier == 2 && now >= 5*sec && now < 15*sec && r.luck < 0.5
	}, failing).serve
	return []scenario{leaving, slow, hedged, together, broken, tiers, storm}
}
