package httplayer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// link knows whether an address can be reached, from the results of the attempts to connect. It is
// fresh before the first one, then up or down. While it is down, one attempt at a time is allowed,
// after a backoff, and all requests are rejected meanwhile.
type link struct {
	backoff layer.Backoff
	timeout time.Duration // maximum duration of one attempt

	changes atomic.Uint64 // number of attempts that ended

	mu       sync.Mutex
	err      error     // error of the last recorded attempt; nil unless the link is down
	failures int       // failed attempts since the last success
	next     time.Time // earliest time of the next attempt, while the link is down
}

// admit reports whether the caller may make a connection. If the link is not down, it may: err is nil,
// and allowed is false, because the attempt is not a probe. If the link is down, allowed is true for
// one caller after each backoff, and wait is the maximum duration of its attempt, after which another
// one is allowed. For all others err is the last error, and wait is the time until the next attempt.
func (l *link) admit() (allowed bool, wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return false, 0, nil
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return false, wait, l.err
	}
	l.next = now.Add(l.timeout) // if the attempt never ends, the next one may begin then
	return true, l.timeout, nil
}

// report records err, the result of an attempt to connect; allowed is what admit returned for it. A
// success sets the link to up. A failure sets it to down and starts a backoff. While the link is down,
// only the failure of an allowed attempt counts, so that attempts which began together lengthen the
// backoff once.
func (l *link) report(allowed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.err, l.failures = nil, 0
	case l.err == nil || allowed:
		l.err = err
		l.next = time.Now().Add(l.backoff.Delay(l.failures))
		l.failures++
	}
	l.changes.Add(1)
}

// failure returns the error of the last recorded attempt while the link is down, and the time until
// the next attempt is allowed. Otherwise it returns 0 and nil.
func (l *link) failure() (wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return 0, nil
	}
	return max(time.Until(l.next), 0), l.err
}

// describe adds to s, for Describe, whether the link is up, down or still fresh, and for one that
// is down the last error and when it may be tried again.
func (l *link) describe(s layer.State) layer.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return append(s, layer.Attr{Key: "link", Value: "down"},
			layer.Attr{Key: "failures", Value: l.failures},
			layer.Attr{Key: "retry_in", Value: max(0, time.Until(l.next).Round(time.Millisecond))},
			layer.Attr{Key: "error", Value: fmt.Sprint(l.err)})
	case l.changes.Load() == 0:
		return append(s, layer.Attr{Key: "link", Value: "fresh"})
	}
	return append(s, layer.Attr{Key: "link", Value: "up"})
}
