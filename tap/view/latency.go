package view

import (
	"math"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/histogram"
)

// latency is the distribution of the durations of the requests that ended in the last 60 intervals.
// Their number is the constant window.
type latency struct {
	mu        sync.Mutex
	now       durations
	past      [window]durations // ring buffer with one entry per interval
	intervals int
}

const (
	window = 60 // number of intervals in the distribution
	perBar = 4  // histogram buckets in one bar of the page
)

// durations holds the durations of requests that ended in one interval.
type durations struct {
	measured, ended uint64 // number of measured requests, and of all requests
	longest         time.Duration
	counts          histogram.Histogram
}

// add counts one measured request that took d.
func (h *durations) add(d time.Duration) {
	h.measured++
	h.longest = max(h.longest, d)
	h.counts.Add(d)
}

func (h *durations) quantile(q float64) time.Duration { return h.counts.Quantile(q, 0, h.longest) }

// add counts one measured request that took d in the current interval.
func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	l.now.add(d)
	l.mu.Unlock()
}

// endInterval ends the current interval and returns its durations. ended is how many requests ended in
// it; not all of them are measured.
func (l *latency) endInterval(ended uint64) durations {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.now
	// A request may be measured before Top counts it.
	h.ended = max(ended, h.measured)
	l.now = durations{}
	l.past[l.intervals%window] = h
	l.intervals++
	return h
}

// bars is the page's histogram: the distribution of durations over the whole window.
type bars struct {
	From   float64  `json:"from"`   // lower bound of the first bar, in nanoseconds
	Counts []uint64 `json:"counts"` // requests by bar; each bar is √2 times as wide as the previous one
	// Of is how many requests ended in the window. The sum over Counts may be lower, because only
	// a sample is measured.
	Of uint64 `json:"of"`
}

// bars returns the histogram of the window, without the empty bars at both ends.
func (l *latency) bars() bars {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum [len(histogram.Histogram{}) / perBar]uint64
	var ended uint64
	for i := range l.past {
		ended += l.past[i].ended
		// A bar of the page adds up several buckets of the histogram.
		for j, n := range &l.past[i].counts {
			sum[j/perBar] += uint64(n)
		}
	}
	first, end := 0, len(sum)
	for first < end && sum[first] == 0 {
		first++
	}
	for end > first && sum[end-1] == 0 {
		end--
	}
	return bars{
		From:   float64(histogram.Shortest) * math.Exp2(float64(first*perBar)/histogram.PerOctave),
		Counts: append([]uint64{}, sum[first:end]...),
		Of:     ended,
	}
}
