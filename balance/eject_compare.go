package balance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// standing is how an endpoint did in an interval.
type standing struct {
	*endpoint
	all, good uint64
}

func (s standing) share() float64 { return float64(s.good) / float64(s.all) }

func (s standing) cause(mean float64, of int) string {
	return fmt.Sprintf("%d of %d responses were good, %.1f %% on average of %d endpoints", s.good, s.all, 100*mean, of)
}

// luck is how many standard errors an endpoint may be below the mean by chance.
// Of a hundred that are equal one is below by three of them every 75 s, where an
// interval is 10 s; by four, every hour; by five, every four days.
const luck = 5

// chance is by how much an endpoint of n responses may be below the mean. Where
// hardly anything fails, failures are rarer than the standard error says but
// come in larger numbers; so it is taken as if there were one more.
func chance(mean float64, n uint64) float64 {
	each := 1 / float64(n)
	return luck * math.Sqrt((mean*(1-mean)+each)*each)
}

// outliers returns those that did worse than their peers, the worst first, and
// the mean share of good responses. It sorts what it is given.
func (e OutlierDetection) outliers(s []standing) (bad []standing, mean float64) {
	if len(s) < e.MinEndpoints {
		return nil, 0
	}
	slices.SortFunc(s, func(a, b standing) int {
		return cmp.Or(cmp.Compare(a.share(), b.share()), a.id.Addr.Compare(b.id.Addr))
	})
	for _, x := range s {
		mean += x.share()
	}
	mean /= float64(len(s))
	variance := 0.0
	for _, x := range s {
		variance += (x.share() - mean) * (x.share() - mean) / float64(len(s))
	}
	below := max(e.StdevFactor*math.Sqrt(variance), e.MinDifference)
	for _, x := range s {
		if mean-x.share() > max(below, chance(mean, x.all)) {
			bad = append(bad, x)
		}
	}
	return bad, mean
}
