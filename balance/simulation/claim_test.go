package simulation

import (
	"fmt"
	"math"
	"slices"
)

// claim is a condition on the result of the default.
type claim struct {
	what  string
	bound string
	met   func(r *result) (value float64, ok bool)
}

func badBelow(percent float64) claim {
	return claim{"share of the bad one", fmt.Sprintf("below %v %%", percent), func(r *result) (float64, bool) {
		return r.Bad, r.Bad < percent
	}}
}

func even(points float64) claim {
	return claim{"evenness", fmt.Sprintf("within %v points", points), func(r *result) (float64, bool) {
		return r.Uneven, r.Uneven <= points
	}}
}

func atMost(name string, most float64) claim {
	return claim{name, fmt.Sprintf("at most %v", most), func(r *result) (float64, bool) {
		return r.get(name), r.get(name) <= most
	}}
}

func atLeast(name string, least float64) claim {
	return claim{name, fmt.Sprintf("at least %v", least), func(r *result) (float64, bool) {
		return r.get(name), r.get(name) >= least
	}}
}

func p99AtMost(most float64) claim {
	return claim{"p99", fmt.Sprintf("at most %v ms", most), func(r *result) (float64, bool) { return r.P99, r.P99 <= most }}
}

func goodAtLeast(least float64) claim {
	return claim{"good share", fmt.Sprintf("at least %v %%", least), func(r *result) (float64, bool) { return r.Good, r.Good >= least }}
}

// The tolerances of the comparisons.
const (
	p99Slack      = 1.05
	feedbackSlack = 1.10 // against a peer with reports of the backends
	goodSlack     = 0.05 // points
	leastWorth    = 0.5  // ms
)

// bestOf returns the best figures of the contenders of a kind.
func (o *outcome) bestOf(k kind) result {
	best := result{P99: math.Inf(1), Bad: 100}
	for i, c := range contenders() {
		if c.kind == k {
			best.P99, best.Good = min(best.P99, o.results[i].P99), max(best.Good, o.results[i].Good)
			best.Bad = min(best.Bad, o.results[i].Bad)
		}
	}
	return best
}

// claims returns all claims of a scenario.
func (o *outcome) claims() []claim {
	all := o.sc.claims
	against := func(what string, best result, slack float64) {
		all = append(slices.Clip(all),
			claim{"p99 against " + what, fmt.Sprintf("%.1f ms", best.P99), func(r *result) (float64, bool) {
				return r.P99, r.P99 <= best.P99*slack+leastWorth
			}},
			claim{"good share against " + what, fmt.Sprintf("%.2f %%", best.Good), func(r *result) (float64, bool) {
				return r.Good, r.Good >= best.Good-goodSlack-o.sc.price
			}})
	}
	against("the best peer", o.bestOf(local), p99Slack)
	against("the best peer with reports", o.bestOf(feedback), feedbackSlack)
	return all
}

// nearOracle reports whether the default is within 5 % of the oracle.
func (o *outcome) nearOracle() bool {
	r, best := o.of(ourDefault), o.bestOf(perfect)
	return r.P99 <= best.P99*p99Slack+leastWorth && r.Good >= best.Good-goodSlack
}
