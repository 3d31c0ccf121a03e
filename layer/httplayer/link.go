package httplayer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// link records whether an address can be reached, from the results of connection attempts.
// While the address cannot be reached, one attempt at a time is allowed, after a backoff.
type link struct {
	backoff layer.Backoff
	timeout time.Duration // maximum duration of one attempt

	changes atomic.Uint64 // number of attempts that ended

	mu       sync.Mutex
	err      error     // error of the last recorded attempt; nil unless the link is down
	failures int       // failed attempts since the last success
	next     time.Time // earliest time of the next attempt, while the link is down
	allowed  attempt   // the last attempt that was allowed
	earlier  attempt   // value of allowed at the last recorded failure
}

// attempt is the permission for one attempt to connect, which is needed while the link is down. It
// is 0 if no permission was needed. The next attempt is allowed after the backoff that follows the
// report of this one. Without a report, it is allowed after the maximum duration of this one.
type attempt uint64

// admit returns the permission to make a connection. While the link is not down, connecting needs no
// permission, and admit returns 0 and no error. While the link is down and an attempt is allowed now,
// mine is the permission, and wait is the maximum duration of the attempt. Otherwise err is the last
// error, and wait is the time until an attempt is allowed.
func (l *link) admit() (mine attempt, wait time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return 0, 0, nil
	}
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return 0, wait, l.err
	}
	l.next = now.Add(l.timeout)
	l.allowed++
	return l.allowed, l.timeout, nil
}

// report records the result err of an attempt to connect. A success sets the link to up. A failure
// sets it to down and starts a backoff. While the link is down, a failure is ignored if the attempt
// was allowed before the last recorded failure, because simultaneous failures count once.
func (l *link) report(mine attempt, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.err, l.failures = nil, 0
	case l.err == nil || mine > l.earlier:
		l.err, l.earlier = err, l.allowed
		l.next = time.Now().Add(l.backoff.Delay(l.failures))
		l.failures++
	}
	l.changes.Add(1)
}

// failure returns the error of the last recorded attempt while the link is down, and nil otherwise.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wait returns the time until the next attempt is allowed. It is 0 unless the link is down.
func (l *link) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return 0
	}
	return max(time.Until(l.next), 0)
}

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
