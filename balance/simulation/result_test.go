package simulation

import (
	"math"
	"slices"
	"time"
)

// result is the figures of one run: times in ms, shares in per cent.
type result struct {
	p50, p99, p999 float64
	good           float64
	bad            float64 // to those that sc.bad names
	uneven         float64 // the most that a share is off an even one
	extra          []figure
	course         []float64 // the share of the bad ones so far, each half second
}

// figure is one number that only some scenarios have.
type figure struct {
	name  string
	value float64
	unit  string
}

func (r *result) get(name string) float64 {
	for _, f := range r.extra {
		if f.name == name {
			return f.value
		}
	}
	return math.NaN()
}

func measure(sc *scenario, log []*request) result {
	var waits []time.Duration
	var good, bad, all int
	to := make([]int, sc.backends)
	for _, r := range log {
		if r.sent < sc.from {
			continue
		}
		all++
		if r.to >= 0 {
			to[r.to]++
			if sc.bad != nil && sc.bad(r.to) {
				bad++
			}
		}
		if r.impatient {
			continue // it has left, whatever the balancer did
		}
		waits = append(waits, r.latency(sc.deadline))
		if r.good(sc.deadline) {
			good++
		}
	}
	slices.Sort(waits)
	quantile := func(q float64) float64 {
		return float64(waits[min(int(q*float64(len(waits))), len(waits)-1)]) / float64(ms)
	}
	res := result{
		p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999),
		good: 100 * float64(good) / float64(len(waits)), bad: 100 * float64(bad) / float64(all),
	}
	for _, n := range to {
		res.uneven = max(res.uneven, 100*math.Abs(float64(n)/float64(all)-1/float64(len(to))))
	}
	if sc.bad != nil {
		res.course = course(sc, log)
	}
	if sc.extra != nil {
		res.extra = sc.extra(log)
	}
	return res
}

func course(sc *scenario, log []*request) (shares []float64) {
	var bad, all float64
	for _, r := range log {
		for time.Duration(len(shares)+1)*sec/2 <= r.sent {
			shares = append(shares, bad/max(all, 1))
		}
		all++
		if r.to >= 0 && sc.bad(r.to) {
			bad++
		}
	}
	return append(shares, bad/all)
}

// median takes the median of each figure, and the course of the first run.
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
		p50: mid(func(r *result) float64 { return r.p50 }), p99: mid(func(r *result) float64 { return r.p99 }),
		p999: mid(func(r *result) float64 { return r.p999 }), good: mid(func(r *result) float64 { return r.good }),
		bad: mid(func(r *result) float64 { return r.bad }), uneven: mid(func(r *result) float64 { return r.uneven }),
	}
	m.course = rs[0].course
	for i, f := range rs[0].extra {
		f.value = mid(func(r *result) float64 { return r.extra[i].value })
		m.extra = append(m.extra, f)
	}
	return m
}

func count(log []*request, what func(r *request) bool) (n int) {
	for _, r := range log {
		if what(r) {
			n++
		}
	}
	return n
}

// share is the part of the requests sent from one time to another that went to
// these backends.
func share(log []*request, these func(int) bool, from, to time.Duration) float64 {
	all := count(log, func(r *request) bool { return r.sent >= from && r.sent < to })
	n := count(log, func(r *request) bool { return r.sent >= from && r.sent < to && r.to >= 0 && these(r.to) })
	return float64(n) / float64(max(all, 1))
}

// returned is how many seconds after a time it takes until these backends have
// at least so many per cent of the requests of a second; +Inf is never.
func returned(log []*request, these func(int) bool, after time.Duration, percent float64) float64 {
	last := log[len(log)-1].sent
	for t := after; t+sec <= last; t += sec / 4 {
		if 100*share(log, these, t, t+sec) >= percent {
			return (t + sec - after).Seconds()
		}
	}
	return math.Inf(1)
}
