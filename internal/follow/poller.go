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

// Poller polls a value while it has users. A user is a running loop over [Poller.States].
// All users share one goroutine. A Poller is safe for concurrent use, must not be copied,
// and needs no Close.
type Poller[S any] struct {
	every time.Duration // interval of the polls
	look  func() *S     // returns the current value

	mu      sync.Mutex
	users   int
	polling bool          // whether the goroutine runs
	idle    chan struct{} // wakes the goroutine after the last user has left
	state   *state[S]     // not nil while there are users
}

// state has the last result of the function look of a [Poller]. It is not modified after its
// creation.
type state[S any] struct {
	latest *S            // nil until the first look
	over   chan struct{} // closed when a newer state replaces this one
}

// NewPoller returns a Poller that calls the function look when the first user starts, and then
// repeatedly. The argument every is the interval. The function look must return the same pointer
// while nothing has changed. Its calls are not concurrent.
func NewPoller[S any](every time.Duration, look func() *S) *Poller[S] {
	return &Poller[S]{every: every, look: look}
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
			s := p.now()
			if s.latest != nil && !yield(s.latest) {
				return
			}
			select {
			case <-s.over:
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
	p.state = &state[S]{over: make(chan struct{})}
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

func (p *Poller[S]) now() *state[S] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// poll calls look at once and then at each tick, until no user remains. The channel idle gets a
// value when the last user leaves, so that poll returns without waiting for the next tick.
func (p *Poller[S]) poll(idle <-chan struct{}) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for p.wanted() {
		// look may call a log handler, which may panic. The next tick calls look again.
		var seen *S
		if panics.Contain(func() { seen = p.look() }) == nil {
			p.publish(seen)
		}
		select {
		case <-ticker.C:
		case <-idle:
		}
	}
}

// wanted reports whether poll must continue, because the Poller has users. Without users, it sets
// the field polling to false in the same critical section, so that the next user starts another
// goroutine.
func (p *Poller[S]) wanted() bool {
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
	was := p.state
	p.state = &state[S]{latest: s, over: make(chan struct{})}
	close(was.over)
}
