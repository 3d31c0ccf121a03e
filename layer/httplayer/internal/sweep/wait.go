package sweep

import (
	"sync/atomic"
	"time"
)

// Wait measures how long one goroutine waits for the peer. The goroutine calls Begin and End for
// each wait. At each interval, the sweeper calls Sweep, which returns the duration of the wait, or
// TooSlow, which compares it with limits. Begin, End and Add on a nil Wait do nothing.
type Wait struct {
	count atomic.Uint32 // number of starts and ends; odd during a wait
	bytes atomic.Int64  // bytes that were received

	// The fields below are used by the sweeper only.

	seen  uint32        // count at the previous sweep
	age   time.Duration // duration of the current wait
	total time.Duration // duration of all waits
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

// Add records that n bytes were received.
func (w *Wait) Add(n int) {
	if w != nil {
		w.bytes.Add(int64(n))
	}
}

// Waits reports whether a goroutine waits.
func (w *Wait) Waits() bool { return w.count.Load()&1 != 0 }

// Sweep returns the duration of the current wait, or 0 between two waits. The sweeper must call it
// once per interval, because each call during a wait counts as one interval.
func (w *Wait) Sweep() time.Duration {
	count := w.count.Load()
	if count&1 != 0 {
		w.total += Interval
	}
	if w.age += Interval; count&1 == 0 || count != w.seen {
		w.age = 0
	}
	w.seen = count
	return w.age
}

// TooSlow reports whether the peer is too slow, by one of two limits. The argument idle limits the
// current wait. The argument rate is the minimum number of bytes per second of waiting. The rate is
// checked after all waits together are longer than idle and longer than one second. A limit of 0
// means unlimited. TooSlow is called once per interval instead of Sweep.
func (w *Wait) TooSlow(idle time.Duration, rate int) bool {
	pause := w.Sweep()
	return idle > 0 && pause > idle || rate > 0 && w.total > max(idle, time.Second) &&
		float64(w.bytes.Load()) < float64(rate)*w.total.Seconds()
}
