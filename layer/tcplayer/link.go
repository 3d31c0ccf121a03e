package tcplayer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// link is what is known of the way to an address from the attempts to connect.
// While it is down there is one attempt at a time, after a back-off.
type link struct {
	backoff  layer.Backoff
	patience time.Duration // how long one attempt takes at most

	changes atomic.Uint64 // times that it went down, up, or stayed down after a trial
	down    atomic.Bool   // written with mu

	mu       sync.Mutex
	failures int       // in a row
	next     time.Time // while down: when there may be a trial
	err      error     // of the last attempt that failed, nil while up
}

// admit asks to connect for a request that is there. While the link is down it
// says no, with the reason and how long that is so, but for one trial after
// each back-off.
func (l *link) admit() (trial bool, wait time.Duration, err error) {
	if !l.down.Load() {
		return false, 0, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return false, 0, nil
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait, l.err
	}
	l.allow(now)
	return true, 0, nil
}

// claim asks for the trial without a request. If it says no, it says how long
// to wait before asking again: not at all if the link came up meanwhile.
func (l *link) claim() (trial bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return false, 0
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait
	}
	l.allow(now)
	return true, l.patience
}

// allow keeps others off for as long as a trial can take.
func (l *link) allow(now time.Time) { l.next = now.Add(l.patience) }

// report takes the outcome of an attempt, and says whether anything changed.
// Of attempts that fail together, begun while the link was up, only the first
// one counts.
func (l *link) report(trial bool, err error) (changed bool) {
	if err == nil && !l.down.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	down := l.down.Load()
	switch {
	case err == nil:
		l.failures, l.err = 0, nil
	case down && !trial:
		return false
	default:
		l.err = err
		l.next = time.Now().Add(l.backoff.Delay(l.failures))
		l.failures++
	}
	l.down.Store(err != nil)
	l.changes.Add(1)
	return true
}

// lastError is why the link is down, or nil.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) describe(s layer.State) layer.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.down.Load() {
		return append(s, layer.Attr{Key: "link", Value: "up"})
	}
	return append(s,
		layer.Attr{Key: "link", Value: "down"},
		layer.Attr{Key: "failures", Value: l.failures},
		layer.Attr{Key: "retry_in", Value: max(0, time.Until(l.next).Round(time.Millisecond))},
		layer.Attr{Key: "error", Value: fmt.Sprint(l.err)})
}
