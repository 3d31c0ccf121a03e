package simulation

import (
	"math"
	"slices"
	"time"
)

// result has the figures of one run. Times are in ms and shares in per cent.
type result struct {
	P50, P99, P999 float64
	Good           float64
	Bad            float64 // share of the requests to the backends of scenario.bad
	Uneven         float64 // the greatest difference between a share and an even one
	Extra          []figure
}

// figure is a number that only some scenarios have.
type figure struct {
	Name  string
	Value float64
	Unit  string
}

func (r *result) get(name string) float64 {
	for _, f := range r.Extra {
		if f.Name == name {
			return f.Value
		}
	}
	return math.NaN()
}

// maxFigure replaces infinity, which JSON cannot express.
const maxFigure = 1e9

func (s *simulation) measure() result {
	var waits []time.Duration
	var good, bad, all int
	to := make([]int, s.scenario.backends)
	for _, c := range s.calls {
		if c.sent < s.from {
			continue
		}
		for _, r := range c.attempts {
			all++
			if r.to >= 0 {
				to[r.to]++
				if s.bad != nil && s.bad(r.to) {
					bad++
				}
			}
		}
		if c.kind < s.impatient {
			continue // it was canceled with every policy
		}
		waits = append(waits, c.latency(s.deadline))
		if c.good(s.deadline) {
			good++
		}
	}
	slices.Sort(waits)
	quantile := func(q float64) float64 {
		return float64(waits[min(int(q*float64(len(waits))), len(waits)-1)]) / float64(ms)
	}
	res := result{
		P50: quantile(0.5), P99: quantile(0.99), P999: quantile(0.999),
		Good: 100 * float64(good) / float64(len(waits)), Bad: 100 * float64(bad) / float64(all),
	}
	for _, n := range to {
		res.Uneven = max(res.Uneven, 100*math.Abs(float64(n)/float64(all)-1/float64(len(to))))
	}
	if s.extra != nil {
		res.Extra = s.extra(s)
	}
	return res
}

// median returns the median of each figure.
func median(rs []result) result {
	mid := func(of func(r *result) float64) float64 {
		var all []float64
		for i := range rs {
			all = append(all, of(&rs[i]))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	m := result{
		P50: mid(func(r *result) float64 { return r.P50 }), P99: mid(func(r *result) float64 { return r.P99 }),
		P999: mid(func(r *result) float64 { return r.P999 }), Good: mid(func(r *result) float64 { return r.Good }),
		Bad: mid(func(r *result) float64 { return r.Bad }), Uneven: mid(func(r *result) float64 { return r.Uneven }),
	}
	for i, f := range rs[0].Extra {
		f.Value = mid(func(r *result) float64 { return r.Extra[i].Value })
		m.Extra = append(m.Extra, f)
	}
	return m
}

// count returns the number of requests of the first tier for which what returns true.
func (s *simulation) count(what func(r *request) bool) (n int) {
	for _, c := range s.calls {
		for _, r := range c.attempts {
			if what(r) {
				n++
			}
		}
	}
	return n
}

// share returns the part of the requests sent between two times that went to these backends.
func (s *simulation) share(these func(int) bool, from, to time.Duration) float64 {
	all := s.count(func(r *request) bool { return r.sent >= from && r.sent < to })
	n := s.count(func(r *request) bool { return r.sent >= from && r.sent < to && r.to >= 0 && these(r.to) })
	return float64(n) / float64(max(all, 1))
}

// returned returns how many seconds after a time these backends first have at least so many
// per cent of the requests of one second.
func (s *simulation) returned(these func(int) bool, after time.Duration, percent float64) float64 {
	last := s.calls[len(s.calls)-1].sent
	for t := after; t+sec <= last; t += sec / 4 {
		if 100*s.share(these, t, t+sec) >= percent {
			return (t + sec - after).Seconds()
		}
	}
	return maxFigure
}
