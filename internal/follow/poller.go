package follow

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// Poller looks at something again and again while somebody wants to know of it,
// in one goroutine for all. It is safe for concurrent use, must not be copied,
// and holds nothing that has to be closed.
type Poller[S any] struct {
	every time.Duration
	look  func() *S

	mu      sync.Mutex
	users   int
	polling bool          // the goroutine runs, or is about to end and looks at users before
	idle    chan struct{} // tells the goroutine that the last user has left
	state   *state[S]     // never nil while there are users
}

// state is what was seen last. It does not change, but is replaced.
type state[S any] struct {
	latest *S            // nil until the first look of the polling
	over   chan struct{} // closed when there is another state
}

// NewPoller returns a Poller that calls look at once when the first user comes,
// and then every so often. look returns the same pointer while nothing changed,
// and is never called twice at a time.
func NewPoller[S any](every time.Duration, look func() *S) *Poller[S] {
	return &Poller[S]{every: every, look: look}
}

// States yields what is seen, and again whenever that changed, until ctx ends
// or the consumer breaks. A slow consumer misses what is over.
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

// Latest returns what was seen last, for a user whose States are under way, and who
// has more than one thing to do with each: it may be over meanwhile.
func (p *Poller[S]) Latest() *S { return p.now().latest }

// enter counts a user, and starts the polling if it is the first one. What an
// earlier poll saw may be long out of date, so users wait for a look.
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

// leave does not wait for the goroutine: a file system that hangs must not hold
// up who leaves.
func (p *Poller[S]) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users > 0 {
		return
	}
	select {
	case p.idle <- struct{}{}:
	default: // the goroutine has not taken the last one yet
	}
}

func (p *Poller[S]) now() *state[S] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// poll looks at once and then at each tick, until no user is left.
func (p *Poller[S]) poll(idle <-chan struct{}) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for p.wanted() {
		// A look may log, and the handler of the log is the program's. After a panic
		// of it the next tick tries again.
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

// wanted decides under the lock, so that a user who comes now either finds the
// goroutine staying or starts another one.
func (p *Poller[S]) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polling = p.users > 0
	return p.polling
}

// publish wakes the users if they do not know s yet.
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
