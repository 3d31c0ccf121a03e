package h1

import (
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// wait measures how long one goroutine waits for the peer. The goroutine counts,
// and the sweeper, which alone uses the other fields, observes the count. A nil
// one measures nothing.
type wait struct {
	count atomic.Uint32 // odd while it waits
	bytes atomic.Int64  // moved since reset

	seen  uint32
	age   time.Duration // of the current wait
	total time.Duration // of all waits
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

// sweep is called once per interval. It returns the age of the current wait.
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
