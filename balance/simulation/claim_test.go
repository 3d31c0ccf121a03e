package simulation

import (
	"fmt"
	"math"
)

// claim is what a run of ours has to show.
type claim struct {
	what  string
	bound string
	met   func(r *result) (value float64, ok bool)
}

// badBelow: the bad ones get less than so many per cent.
func badBelow(percent float64) claim {
	return claim{"share of the bad one", fmt.Sprintf("below %v %%", percent), func(r *result) (float64, bool) {
		return r.bad, r.bad < percent
	}}
}

// even: no share is further from an even one.
func even(points float64) claim {
	return claim{"evenness", fmt.Sprintf("within %v points", points), func(r *result) (float64, bool) {
		return r.uneven, r.uneven <= points
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
	return claim{"p99", fmt.Sprintf("at most %v ms", most), func(r *result) (float64, bool) { return r.p99, r.p99 <= most }}
}

func goodAtLeast(least float64) claim {
	return claim{"good share", fmt.Sprintf("at least %v %%", least), func(r *result) (float64, bool) { return r.good, r.good >= least }}
}

// The tolerances. A run of the test has some 10 000 requests, so that its p99.9
// is the tenth worst of them, and which one that is depends on single draws.
const (
	p99Slack   = 1.05
	p999Slack  = 1.10
	goodSlack  = 0.05 // points
	scanSlack  = 1.05
	leastWorth = 0.5 // ms that no caller feels
)

// asGoodAs are the claims against the best of the peers, figure by figure.
func asGoodAs(sc *scenario, peers []result) []claim {
	best := result{p99: math.Inf(1), p999: math.Inf(1)}
	for _, p := range peers {
		best.p99, best.p999, best.good = min(best.p99, p.p99), min(best.p999, p.p999), max(best.good, p.good)
	}
	claims := []claim{
		{"p99 against the best peer", fmt.Sprintf("%.1f ms", best.p99), func(r *result) (float64, bool) {
			return r.p99, r.p99 <= best.p99*p99Slack+leastWorth
		}},
		{"good share against the best peer", fmt.Sprintf("%.2f %%", best.good), func(r *result) (float64, bool) {
			return r.good, r.good >= best.good-goodSlack-sc.price
		}},
	}
	if sc.price > 0 {
		return claims // it is just this tail that has to be paid
	}
	return append(claims, claim{"p99.9 against the best peer", fmt.Sprintf("%.1f ms", best.p999), func(r *result) (float64, bool) {
		return r.p999, r.p999 <= best.p999*p999Slack+leastWorth
	}})
}

// nearScan are the claims against a scan of all with the same cost.
func nearScan(scan result) []claim {
	return []claim{
		{"p99 against a scan", fmt.Sprintf("%.1f ms", scan.p99), func(r *result) (float64, bool) {
			return r.p99, r.p99 <= scan.p99*scanSlack+leastWorth
		}},
		{"p99.9 against a scan", fmt.Sprintf("%.1f ms", scan.p999), func(r *result) (float64, bool) {
			return r.p999, r.p999 <= scan.p999*p999Slack+leastWorth
		}},
		{"good share against a scan", fmt.Sprintf("%.2f %%", scan.good), func(r *result) (float64, bool) {
			return r.good, r.good >= scan.good/scanSlack
		}},
	}
}
