package layer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/histogram"
)

// quantile estimates a quantile of durations in a sliding window of time. Its methods do not
// allocate and may be called concurrently. Package histogram documents the precision of the
// estimate.
//
// The window consists of two halves. Each half lasts for the time in the field period. New
// samples are added to the current half. When its time is over, it becomes the previous
// half, and the former previous half is dropped. The estimate uses both halves.
type quantile struct {
	q      float64       // above 0 and below 1
	least  int           // the number of samples that an estimate needs
	period time.Duration // the length of a half of the window, more than 0

	estimate atomic.Int64 // in nanoseconds; 0 means too few samples
	due      atomic.Int64 // time of the next estimate, in nanoseconds since the fixed start

	mu                sync.Mutex
	rotated           time.Duration // the start of the current half
	current, previous quantileHalf
}

type quantileHalf struct {
	samples int
	histogram.Histogram
}

// quantileFresh is the maximum age of an estimate. The estimate is not updated for each
// sample, because an update takes a few microseconds.
const quantileFresh = time.Second

// record adds the sample d to the window. The argument now is the time since a start that
// is the same for all calls.
func (q *quantile) record(now, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rotate(now)
	q.current.Add(d)
	q.current.samples++
	if int64(now) >= q.due.Load() || q.estimate.Load() == 0 && q.current.samples+q.previous.samples >= q.least {
		q.update(now)
	}
}

// at returns the estimate of the quantile. It returns false if the window has too few
// samples. The argument now is the time since the same start as for record.
func (q *quantile) at(now time.Duration) (time.Duration, bool) {
	if int64(now) >= q.due.Load() {
		q.mu.Lock()
		q.rotate(now)
		q.update(now)
		q.mu.Unlock()
	}
	d := q.estimate.Load()
	return time.Duration(d), d > 0
}

// rotate moves the window to the time now. The caller must hold mu.
func (q *quantile) rotate(now time.Duration) {
	age := now - q.rotated
	if age < q.period {
		return
	}
	q.previous, q.current = q.current, quantileHalf{}
	if age >= 2*q.period {
		q.previous = quantileHalf{}
	}
	q.rotated = now - age%q.period
}

// update computes a new estimate. The caller must hold mu.
func (q *quantile) update(now time.Duration) {
	q.due.Store(int64(now + quantileFresh))
	if q.current.samples+q.previous.samples < q.least {
		q.estimate.Store(0)
		return
	}
	both := q.current.Histogram
	for i, n := range &q.previous.Histogram {
		both[i] += n
	}
	q.estimate.Store(int64(both.Quantile(q.q, histogram.Shortest, histogram.Shortest<<histogram.Octaves)))
}
