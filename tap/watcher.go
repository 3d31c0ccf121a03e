package tap

import (
	"sync"
	"sync/atomic"
)

// watcher is one call of Observe.
//
// Requests enter it until limit of them have. Once it is full and all that
// entered have left, it is done: nothing more will be sent.
type watcher struct {
	reg    *Registry
	base   uint32
	limit  uint64
	match  *condition
	fields bool // asked for headers and trailers

	// buf is nil once the watcher is gone. Requests in flight may keep a
	// watcher alive for long, but not what it had buffered.
	buf atomic.Pointer[buffer]

	seen    atomic.Uint64 // requests that matched
	inside  atomic.Int64  // requests that entered and did not leave
	dropped atomic.Uint64 // events that did not fit

	filled   chan struct{} // closed when the last request entered
	done     chan struct{}
	doneOnce sync.Once
}

// full is asked before a request is matched.
func (w *watcher) full() bool { return w.seen.Load() >= w.limit }

// enter gives a request its number, unless the limit was reached. Who entered
// must leave.
func (w *watcher) enter() (stream uint64, ok bool) {
	// Inside is counted first: whoever sees the watcher full then sees
	// everybody inside, too.
	w.inside.Add(1)
	n := w.seen.Add(1)
	if n > w.limit {
		w.leave()
		return 0, false
	}
	if n == w.limit {
		close(w.filled)
	}
	return n - 1, true
}

func (w *watcher) leave() {
	if w.inside.Add(-1) == 0 && w.full() {
		w.doneOnce.Do(func() { close(w.done) })
	}
}

// send never waits. It reports whether e was taken.
func (w *watcher) send(e Event) bool {
	b := w.buf.Load()
	if b == nil {
		return false
	}
	if !b.offer(e) {
		w.dropped.Add(1)
		return false
	}
	return true
}
