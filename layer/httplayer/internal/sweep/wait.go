package sweep

import (
	"sync/atomic"
	"time"
)

// Wait measures how long a goroutine waits for the peer, without reading the clock. The goroutine calls
// Begin and End around each wait. The sweeper calls Sweep or TooSlow at each interval, and counts the
// intervals in which the same wait was in progress. Begin, End and Add do nothing on a nil Wait.
type Wait struct {
	count atomic.Uint32 // number of starts and ends; odd during a wait
	bytes atomic.Int64  // bytes that were received

	// The fields below are used by the sweeper only.

	lastCount uint32        // count at the previous sweep
	age       time.Duration // duration of the current wait
	total     time.Duration // duration of all waits
}

// Begin records that a goroutine begins to wait for bytes of the peer.
func (w *Wait) Begin() {
	if w != nil {
		w.count.Add(1)
	}
}

// End records that the wait has ended, and that n bytes were received in it.
func (w *Wait) End(n int) {
	w.Begin() // makes the count even
	w.Add(n)
}

// Add records that n bytes were received from the peer.
func (w *Wait) Add(n int) {
	if w != nil {
		w.bytes.Add(int64(n))
	}
}

// Waits reports whether a goroutine waits for bytes of the peer at the moment, between Begin and
// End.
func (w *Wait) Waits() bool { return w.count.Load()&1 != 0 }

// Sweep returns the duration of the current wait, or 0 between two waits. The sweeper must call it
// once per interval, because each call during a wait counts as one interval.
func (w *Wait) Sweep() time.Duration {
	count := w.count.Load()
	if count&1 != 0 {
		w.total += Interval
	}
	// Another count than at the last sweep means that another wait has begun since.
	if w.age += Interval; count&1 == 0 || count != w.lastCount {
		w.age = 0
	}
	w.lastCount = count
	return w.age
}

// TooSlow reports whether the peer is too slow, by one of two limits, of which 0 means unlimited. idle
// is the longest single wait. rate is how many bytes must arrive per second of waiting; it is checked
// once all waits together exceed both idle and one second. TooSlow replaces Sweep, so call it once per
// interval.
func (w *Wait) TooSlow(idle time.Duration, rate int) bool {
	pause := w.Sweep()
	return idle > 0 && pause > idle || rate > 0 && w.total > max(idle, time.Second) &&
		float64(w.bytes.Load()) < float64(rate)*w.total.Seconds()
}
