package h1

import (
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// wait measures how long one goroutine waits for the peer. The goroutine counts the start
// and the end of each wait. The sweeper observes the count at each interval. Methods on a
// nil wait do nothing.
type wait struct {
	count atomic.Uint32 // number of starts and ends; odd during a wait
	bytes atomic.Int64  // bytes that were read

	seen  uint32        // count at the previous sweep; used by the sweeper only
	age   time.Duration // duration of the current wait; used by the sweeper only
	total time.Duration // duration of all waits; used by the sweeper only
}

func (w *wait) begin() {
	if w != nil {
		w.count.Add(1)
	}
}

func (w *wait) end(n int) {
	if w != nil {
		w.count.Add(1)
		w.bytes.Add(int64(n))
	}
}

// sweep is called once per interval. It updates the durations and returns the duration of
// the current wait, or 0 between two waits.
func (w *wait) sweep() time.Duration {
	count := w.count.Load()
	switch {
	case count&1 == 0:
		w.age = 0
	case count == w.seen:
		w.age += sweep.Interval
		w.total += sweep.Interval
	default:
		w.age = 0
		w.total += sweep.Interval
	}
	w.seen = count
	return w.age
}
