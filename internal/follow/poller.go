package follow

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Interval is the time between two polls of a file.
const Interval = 500 * time.Millisecond

// Poller polls a value while there are users, which are running loops over [Poller.States]. All
// users share one goroutine. A Poller is safe for concurrent use, must not be copied, and needs
// no Close.
type Poller[S any] struct {
	every time.Duration // interval of the polls
	read  func() *S     // returns the current value

	mu      sync.Mutex
	users   int           // number of users; the last one ends the polls
	polling bool          // whether the goroutine runs
	idle    chan struct{} // wakes the goroutine after the last user has left
	state   *state[S]     // not nil while there are users
}

// state holds the last value that a [Poller] has read. It is never modified.
type state[S any] struct {
	latest   *S            // nil until the first look
	replaced chan struct{} // closed when a newer state replaces this one
}

// NewPoller returns a Poller that calls read when the first user starts, and then again after each
// interval every. read must return the same pointer while nothing has changed. Its calls are not
// concurrent.
func NewPoller[S any](every time.Duration, read func() *S) *Poller[S] {
	return &Poller[S]{every: every, read: read}
}

// States yields the current value, and the new value after each change, until ctx ends or
// the consumer breaks. A slow consumer misses intermediate values.
func (p *Poller[S]) States(ctx context.Context) iter.Seq[*S] {
	return func(yield func(*S) bool) {
		if ctx.Err() != nil {
			return
		}
		p.enter()
		defer p.leave()
		for ctx.Err() == nil {
			// Before the wait, so that a change after it closes s.replaced.
			s := p.now()
			if s.latest != nil && !yield(s.latest) {
				return
			}
			select {
			case <-s.replaced:
			case <-ctx.Done():
			}
		}
	}
}

// Latest returns the current value. It may be called only while a loop over States runs.
func (p *Poller[S]) Latest() *S { return p.now().latest }

// enter adds a user. If the goroutine that polls does not run, enter starts it. Then enter also
// discards the last value of an earlier goroutine, because that value may be outdated.
func (p *Poller[S]) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	if p.polling {
		return
	}
	p.polling = true
	p.idle = make(chan struct{}, 1)
	p.state = &state[S]{replaced: make(chan struct{})}
	go p.poll(p.idle)
}

// leave removes a user. After the last user it signals the goroutine to end, but does not wait,
// because a file system may hang.
func (p *Poller[S]) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	select {
	case p.idle <- struct{}{}:
	default: // the previous signal is still pending
	}
}

// now returns the state that the last poll has left. It does not read.
func (p *Poller[S]) now() *state[S] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// poll calls read immediately and then at each tick, until no user remains. The channel idle gets a
// value when the last user leaves, so that poll returns without waiting for the next tick.
func (p *Poller[S]) poll(idle <-chan struct{}) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for p.mustPoll() {
		// read may call code of the user, such as a log handler, which may panic. The next tick calls read again.
		var last *S
		if panics.Contain(func() { last = p.read() }) == nil {
			p.publish(last)
		}
		select {
		case <-ticker.C:
		case <-idle:
		}
	}
}

// mustPoll reports whether poll must continue, because there are users. Without users, it sets
// polling to false in the same critical section, so that the next user starts another goroutine.
func (p *Poller[S]) mustPoll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polling = p.users > 0
	return p.polling
}

// publish makes s the current value and notifies the users, unless s already is the current
// value.
func (p *Poller[S]) publish(s *S) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.latest == s {
		return
	}
	previous := p.state
	p.state = &state[S]{latest: s, replaced: make(chan struct{})}
	close(previous.replaced)
}
