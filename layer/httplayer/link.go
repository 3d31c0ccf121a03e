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
	state    linkState
	failures int       // failed attempts since the last success
	next     time.Time // earliest time of the next attempt, while the link is down
	trying   bool      // an allowed attempt has not ended
	allowed  attempt   // the last attempt that was allowed
	earlier  attempt   // value of allowed when the link went down
	err      error     // error of the last attempt; nil after a success
}

// attempt is the permission for one attempt to connect, which is needed while the link is down.
// Another attempt is allowed only after the end of this one or after its maximum duration. The
// goroutine with the permission must call report after connecting, or release without connecting.
// In these calls, 0 means that no permission was needed, because the link was not down.
type attempt uint64

type linkState int

const (
	linkFresh linkState = iota // no attempt has ended
	linkUp
	linkDown
)

func (s linkState) String() string { return [...]string{"fresh", "up", "down"}[s] }

// admit returns the permission to make a connection for a request. While the link is not down,
// connecting needs no permission, and admit returns 0 and no error. While the link is down, it
// returns the last error if the backoff has not ended or another attempt is in progress.
func (l *link) admit() (attempt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkDown {
		return 0, nil
	}
	now := time.Now()
	if now.Before(l.next) {
		return 0, l.err
	}
	return l.allow(now), nil
}

// claim returns the permission to make a connection without a request. If connecting is allowed
// now, mine is this permission, and wait is the maximum duration of the attempt. Otherwise mine is
// 0, and wait is the time until connecting is allowed.
func (l *link) claim() (mine attempt, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return 0, wait
	}
	return l.allow(now), l.timeout
}

// allow returns a new permission to connect, and forbids other attempts for the maximum duration of
// an attempt. After that time another attempt is allowed, even if report was not called. The caller
// holds mu.
func (l *link) allow(now time.Time) attempt {
	l.trying, l.next = true, now.Add(l.timeout)
	l.allowed++
	return l.allowed
}

// release ends the permission to connect in the argument mine, if it was not used. Another attempt
// is then allowed after the backoff of the last failure. If mine is 0 or this attempt has ended,
// release does nothing.
func (l *link) release(mine attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mine == 0 || !l.trying || l.allowed != mine {
		return
	}
	l.trying, l.next = false, time.Now().Add(l.backoff.Delay(max(l.failures-1, 0)))
	l.changes.Add(1)
}

// report records the result err of an attempt to connect. A success sets the link to up. A failure
// sets it to down and starts a backoff. Failures of attempts that were allowed before the link went
// down are then ignored, because simultaneous failures count once. The failure of a later attempt
// increases the backoff.
func (l *link) report(mine attempt, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.changes.Add(1)
	switch {
	case err == nil:
		l.state, l.failures, l.err = linkUp, 0, nil
	case l.state != linkDown:
		l.earlier = l.allowed
		l.recordFailure(err)
	case l.trying && mine > l.earlier: // be it one that took too long
		l.recordFailure(err)
	default:
		return
	}
	l.trying = false
}

// recordFailure sets the state to down and starts the next backoff. The caller holds mu.
func (l *link) recordFailure(err error) {
	l.state, l.err = linkDown, err
	l.next = time.Now().Add(l.backoff.Delay(l.failures))
	l.failures++
}

// down reports whether the last recorded attempt failed.
func (l *link) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkDown
}

// lastError returns the error of the last attempt, or nil if it succeeded or there was
// none.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wait returns the time until the next attempt is allowed. It is 0 unless the link is down.
func (l *link) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != linkDown {
		return 0
	}
	return max(time.Until(l.next), 0)
}

func (l *link) describe(s layer.State) layer.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s = append(s, layer.Attr{Key: "link", Value: l.state.String()})
	if l.state == linkDown {
		s = append(s, layer.Attr{Key: "failures", Value: l.failures},
			layer.Attr{Key: "retry_in", Value: max(0, time.Until(l.next).Round(time.Millisecond))},
			layer.Attr{Key: "error", Value: fmt.Sprint(l.err)})
	}
	return s
}
