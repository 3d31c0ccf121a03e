package tap

import (
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
)

// watcher is one call of Observe or Watch.
//
// Requests enter it until limit of them have. Once it is full and all that
// entered have left, it is done: nothing more will be sent.
type watcher struct {
	terms
	reg  *Registry
	base uint32

	// buf is nil once the watcher is gone. Requests in flight may keep a
	// watcher alive for long, but not what it had buffered.
	buf atomic.Pointer[buffer]

	pace    pace
	seen    atomic.Uint64 // requests that matched
	inside  atomic.Int64  // requests that entered and did not leave
	dropped atomic.Uint64 // events that did not fit
	expired atomic.Bool   // its time is over

	lost     chan struct{} // holds one when dropped has grown
	filled   chan struct{} // closed when the last request entered
	done     chan struct{}
	doneOnce sync.Once
}

func newWatcher(r *Registry, t terms) *watcher {
	w := &watcher{
		terms: t, reg: r, base: r.nextBase,
		lost: make(chan struct{}, 1), filled: make(chan struct{}), done: make(chan struct{}),
	}
	w.pace.perSecond(t.maxRPS, w.base)
	w.buf.Store(newBuffer(orDefault(r.maxEvents, defaultMaxEvents)))
	return w
}

// full is asked before a request is matched.
func (w *watcher) full() bool { return w.seen.Load() >= w.limit || w.expired.Load() }

// clogged reports whether its reader left no room for another event.
func (w *watcher) clogged() bool {
	b := w.buf.Load()
	return w.outcome == nil && b != nil && len(b.events) == cap(b.events)
}

// miss counts a request of which there is no room for the first event.
func (w *watcher) miss() {
	if _, ok := w.enter(); ok {
		w.lose()
		w.leave()
	}
}

// enter gives a request its number, unless the limit was reached or the watcher
// has seen enough in this second. Who entered must leave.
func (w *watcher) enter() (stream uint64, ok bool) {
	if !w.pace.take() {
		return 0, false
	}
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
		w.lose()
		return false
	}
	return true
}

// lose counts an event that did not fit. A request of which the first does not
// fit is one.
func (w *watcher) lose() {
	w.dropped.Add(1)
	select {
	case w.lost <- struct{}{}:
	default: // its reader was told already, and did not look yet
	}
}

func (w *watcher) describe() layer.Node {
	s := layer.State{
		{Key: "base", Value: w.base},
		{Key: "seen", Value: min(w.seen.Load(), w.limit)},
		{Key: "limit", Value: w.limit},
		{Key: "in_flight", Value: w.inside.Load()},
		{Key: "dropped", Value: w.dropped.Load()},
	}
	if w.limit == unlimited {
		s[2].Value = "none"
	}
	if b := w.buf.Load(); b != nil && w.outcome != nil {
		s = append(s, layer.Attr{Key: "held", Value: b.held.Load()})
	}
	return layer.Node{Name: "watcher", State: s}
}
