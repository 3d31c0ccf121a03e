package layer

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// quantile estimates a quantile of durations in a sliding window. record and at do not
// allocate, do not wait, and may be called concurrently.
//
// It is a histogram with sixteen buckets per power of two. The estimate is the middle
// of the bucket that contains the exact quantile. Its error is at most 1/32, or 0.5 µs
// below 16 µs. Durations above quantileMost count as quantileMost.
//
// The window has two halves. New samples are added to the current half. After period
// the other half is emptied and becomes current. The estimate uses both.
type quantile struct {
	q       float64       // above 0 and below 1
	least   int64         // the number of samples that an estimate needs
	period  time.Duration // more than 0
	halves  [2]quantileHalf
	current atomic.Uint32 // the index of the half that receives samples

	estimate atomic.Int64 // in nanoseconds; 0 means too few samples
	seen     atomic.Int64 // number of samples while there is no estimate
	due      atomic.Int64 // time of the next estimate

	mu      sync.Mutex
	rotated time.Duration
}

type quantileHalf [quantileBuckets]atomic.Uint32

const (
	quantileBits = 4  // number of bits that choose a bucket within a power of two
	quantileUnit = 10 // number of lowest bits that are ignored: a unit is 1.024 µs
	quantileTop  = 32 // number of higher bits that count: up to 73 minutes

	quantileBuckets = (quantileTop - quantileBits + 1) << quantileBits
	quantileMost    = 1<<(quantileUnit+quantileTop) - 1

	// quantileFresh is the maximum age of an estimate. It is not updated for each
	// sample, because an update takes a few microseconds.
	quantileFresh = time.Second
)

// record adds the sample d. now is the time since a fixed start.
func (q *quantile) record(now, d time.Duration) {
	q.look(now) // before the sample is added, so that it does not fall into an emptied half
	q.halves[q.current.Load()&1][quantileBucket(d)].Add(1)
	if q.estimate.Load() == 0 && q.seen.Add(1) >= q.least {
		q.due.Store(0) // there are enough samples for an estimate
		q.look(now)
	}
}

// at returns the estimate at the time now, or false if there are too few samples.
func (q *quantile) at(now time.Duration) (time.Duration, bool) {
	q.look(now)
	d := q.estimate.Load()
	return time.Duration(d), d > 0
}

// look updates the estimate if it is due and no other goroutine updates it.
func (q *quantile) look(now time.Duration) {
	if int64(now) < q.due.Load() || !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	q.due.Store(int64(now + quantileFresh))
	if age := now - q.rotated; age >= q.period {
		q.rotate(age >= 2*q.period)
		q.rotated = now - age%q.period
	}
	q.make()
}

// rotate empties the older half, or both halves. The older half becomes current.
// Concurrent samples may be lost.
func (q *quantile) rotate(both bool) {
	older := q.current.Load()&1 ^ 1
	q.halves[older].empty()
	if both {
		q.halves[older^1].empty()
	}
	q.current.Store(older)
}

func (h *quantileHalf) empty() {
	for i := range h {
		h[i].Store(0)
	}
}

func (q *quantile) make() {
	// Each count is read only once, because samples may be added concurrently.
	var counts [quantileBuckets]int64
	total := int64(0)
	for i := range counts {
		counts[i] = int64(q.halves[0][i].Load()) + int64(q.halves[1][i].Load())
		total += counts[i]
	}
	if total < q.least {
		q.estimate.Store(0)
		q.seen.Store(total)
		return
	}
	rank := int64(math.Ceil(q.q * float64(total)))
	for i, n := range &counts {
		if rank -= n; rank <= 0 {
			q.estimate.Store(int64(quantileMiddle(i)))
			return
		}
	}
}

// quantileBucket returns the bucket of d. Below 2^quantileBits units, each unit has a
// bucket. Above, the highest bits of d determine the bucket.
func quantileBucket(d time.Duration) int {
	units := uint64(min(max(d, 0), quantileMost)) >> quantileUnit
	shift := max(bits.Len64(units)-quantileBits-1, 0)
	return shift<<quantileBits + int(units>>shift)
}

// quantileMiddle returns the duration in the middle of bucket i.
func quantileMiddle(i int) time.Duration {
	shift := max(i>>quantileBits-1, 0)
	low := (i - shift<<quantileBits) << shift
	return time.Duration(low<<quantileUnit + 1<<(shift+quantileUnit)/2)
}
