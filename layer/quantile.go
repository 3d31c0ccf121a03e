package layer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/histogram"
)

// quantile estimates a quantile of durations over a sliding window of time. Its methods do not
// allocate and may be called concurrently. Package histogram documents how precise the estimate
// is.
//
// The window consists of two halves, each of which lasts for period. New samples are added to the
// current half. When its time is over, it becomes the previous half, and the former previous half
// is dropped. The estimate uses both halves.
type quantile struct {
	q          float64       // above 0 and below 1
	minSamples int           // the number of samples that an estimate needs
	period     time.Duration // the length of a half of the window, more than 0

	estimate atomic.Int64 // in nanoseconds; 0 means too few samples
	due      atomic.Int64 // time of the next estimate, in nanoseconds since the fixed start

	mu                sync.Mutex
	rotated           time.Duration // the start of the current half
	current, previous quantileHalf
}

// quantileHalf holds the samples of one half of the window.
type quantileHalf struct {
	samples int
	histogram.Histogram
}

// quantileFresh is the maximum age of an estimate. The estimate is not updated for each
// sample, because an update takes a few microseconds.
const quantileFresh = time.Second

// record adds the sample d to the window. now is the time since a start that is the same for all
// calls.
func (q *quantile) record(now, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rotate(now)
	q.current.Add(d)
	q.current.samples++
	// Soon after the first samples, do not wait for the next second.
	if int64(now) >= q.due.Load() || q.estimate.Load() == 0 && q.current.samples+q.previous.samples >= q.minSamples {
		q.update(now)
	}
}

// value returns the estimated quantile, or false if the window holds too few samples. now is the time
// since the same start as in record. Usually it is two atomic loads.
func (q *quantile) value(now time.Duration) (time.Duration, bool) {
	// The estimate is too old, for example because requests have ceased.
	if int64(now) >= q.due.Load() {
		q.mu.Lock()
		q.rotate(now)
		q.update(now)
		q.mu.Unlock()
	}
	d := q.estimate.Load()
	return time.Duration(d), d > 0
}

// rotate begins a new half if the current one is older than period. The caller must hold mu.
func (q *quantile) rotate(now time.Duration) {
	age := now - q.rotated
	if age < q.period {
		return
	}
	q.previous, q.current = q.current, quantileHalf{}
	if age >= 2*q.period { // no samples arrived for a whole half
		q.previous = quantileHalf{}
	}
	// The new half begins at a multiple of period, as if it had begun in time.
	q.rotated = now - age%q.period
}

// update computes a new estimate. The caller must hold mu.
func (q *quantile) update(now time.Duration) {
	q.due.Store(int64(now + quantileFresh))
	if q.current.samples+q.previous.samples < q.minSamples {
		// An estimate of 0 tells value that there are too few samples.
		q.estimate.Store(0)
		return
	}
	sum := q.current.Histogram
	// sum is a copy, because the histogram is an array.
	for i, n := range &q.previous.Histogram {
		sum[i] += n
	}
	q.estimate.Store(int64(sum.Quantile(q.q, histogram.Shortest, histogram.Shortest<<histogram.Octaves)))
}
