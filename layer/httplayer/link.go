package httplayer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// link is what is known of the way to an address from the connections that
// were attempted. While it is down there is one attempt at a time, after a
// back-off.
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

// attempt is one that keeps others off: who was allowed it reports how it ended,
// or forgoes it. The zero attempt keeps nobody off.
type attempt uint64

type linkState int

const (
	linkFresh linkState = iota // nobody tried yet
	linkUp
	linkDown
)

func (s linkState) String() string { return [...]string{"fresh", "up", "down"}[s] }

// admit asks to connect now, for a request that is there. It says no while the
// link is down and its back-off is not over, or somebody else is at it.
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

// claim asks to connect now to find out whether it is possible. If it says no,
// it says how long to wait before asking again.
func (l *link) claim() (mine attempt, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if wait = l.next.Sub(now); wait > 0 {
		return 0, wait
	}
	return l.allow(now), l.patience
}

// allow keeps others off for as long as an attempt can take; then they may
// try, even if nobody reports.
func (l *link) allow(now time.Time) attempt {
	l.trying, l.next = true, now.Add(l.patience)
	l.allowed++
	return l.allowed
}

// forgo gives back an attempt that nobody will report, since it came to nothing:
// there was no place for it, or somebody else's took its place. The next one may
// be made after as long a back-off as the last failure asked for.
func (l *link) forgo(mine attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mine == 0 || !l.trying || l.allowed != mine {
		return
	}
	l.trying, l.next = false, time.Now().Add(l.backoff.Delay(max(l.failures-1, 0)))
	l.changes.Add(1)
}

// report takes the outcome of an attempt, mine if that kept others off. Of those
// that fail together, begun while the link was up, only the first one counts, and
// the others let nobody in beside the one that is allowed by then.
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

// fall takes a failure. The caller holds mu.
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

// lastError is why there is no connection, or nil.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// wait is how long there will be no attempt, for those who are not in Ready.
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
