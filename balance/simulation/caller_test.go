package simulation

import (
	"slices"
	"time"
)

// odd are unusual requests and callers.
func odd(cut func(time.Duration) time.Duration) []scenario {
	streams := usual("long streams", "a fifth of the responses have headers after 5 ms and their end after 20 s; a stream holds one of 128 workers")
	streams.rate, streams.length, streams.from, streams.workers, streams.bad = 250, 100*sec, 30*sec, 128, nil
	streams.streams = 0.2
	usually := streams.serve
	streams.serve = func(r *request, now time.Duration) answer {
		if r.stream {
			return answer{head: 5 * ms, end: 20 * sec}
		}
		return usually(r, now)
	}
	streams.extra = func(log []*request) []figure {
		return []figure{{"greatest number of streams / mean", fullest(log, 10), "×"}}
	}
	streams.claims = []claim{even(4), atMost("greatest number of streams / mean", 1.1)}

	leaving := usual("cancellations", "half of all requests are canceled after 2 ms; ten equal ones")
	leaving.from, leaving.bad = 10*sec, nil
	leaving.impatient, leaving.patience = 0.5, 2*ms
	leaving.claims = []claim{even(4)}

	slow := usual("cancellations, one slow", "half of all requests are canceled after 2 ms; one of ten takes 100 ms longer").slower(0, 100*ms, nil)
	slow.impatient, slow.patience = 0.5, 2*ms
	slow.claims = []claim{badBelow(3)}
	return []scenario{streams, leaving, slow}
}

// fullest is how many streams the fullest of n backends has, against the mean,
// looked at each second from 30 s on: the median of those.
func fullest(log []*request, n int) float64 {
	var ratios []float64
	for t := 30 * sec; t < 100*sec; t += sec {
		open, all := make([]int, n), 0
		for _, r := range log {
			if r.stream && r.to >= 0 && r.sent <= t && r.end > t {
				open[r.to]++
				all++
			}
		}
		ratios = append(ratios, float64(slices.Max(open))*float64(n)/float64(max(all, 1)))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}
