package httplayer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// link is the state of an address that the attempts to connect have shown. While the
// address is unreachable, one attempt at a time is allowed, after a backoff.
type link struct {
	backoff  layer.Backoff
	patience time.Duration // how long one attempt takes at most

	changes atomic.Uint64 // attempts that ended

	mu       sync.Mutex
	state    linkState
	failures int       // in a row
	next     time.Time // unless up, when there may be an attempt
	trying   bool      // one was allowed, and has not ended
	allowed  attempt   // the last one,
	earlier  attempt   // and the last one by the time the link went down
	err      error     // of the last attempt, nil if it succeeded
}

// attempt is the permission to connect to an unreachable address, which is given to one
// connection at a time. The holder calls report or forgo. The zero value belongs to an
// attempt on a reachable address.
type attempt uint64

type linkState int

const (
	linkFresh linkState = iota // nobody tried yet
	linkUp
	linkDown
)

func (s linkState) String() string { return [...]string{"fresh", "up", "down"}[s] }

// admit returns an attempt for a request that needs a connection now. It returns an error
// while the backoff lasts or another attempt is in progress.
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

// claim returns an attempt for a probe. Without one it returns the time until the next
// claim.
func (l *link) claim() (mine attempt, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return 0, wait
	}
	return l.allow(now), l.patience
}

// allow gives out the attempt. It blocks other attempts for the longest time that
// connecting can take, in case the holder never reports.
func (l *link) allow(now time.Time) attempt {
	l.trying, l.next = true, now.Add(l.patience)
	l.allowed++
	return l.allowed
}

// forgo returns an attempt that was not made. The next attempt waits for the backoff of the
// last failure.
func (l *link) forgo(mine attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mine == 0 || !l.trying || l.allowed != mine {
		return
	}
	l.trying, l.next = false, time.Now().Add(l.backoff.Delay(max(l.failures-1, 0)))
	l.changes.Add(1)
}

// report records the result of an attempt. If several connections that began while the
// address was reachable fail, only the first failure increases the backoff.
func (l *link) report(mine attempt, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.changes.Add(1)
	switch {
	case err == nil:
		l.state, l.failures, l.err = linkUp, 0, nil
	case l.state != linkDown:
		l.earlier = l.allowed
		l.fall(err)
	case l.trying && mine > l.earlier: // be it one that took too long
		l.fall(err)
	default:
		return
	}
	l.trying = false
}

// fall records a failure and sets the backoff. The caller holds mu.
func (l *link) fall(err error) {
	l.state, l.err = linkDown, err
	l.next = time.Now().Add(l.backoff.Delay(l.failures))
	l.failures++
}

// down reports whether the last attempt to connect failed.
func (l *link) down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkDown
}

// lastError returns the error of the last attempt, or nil if the address is reachable.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wait returns the time until the next attempt is allowed.
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
