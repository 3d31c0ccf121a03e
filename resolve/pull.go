package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// puller reads one resolver for ServeStale, which sometimes must wake up at a deadline. The resolver
// runs as a coroutine. Without a deadline, an item therefore reaches the consumer without waking up
// another goroutine, which would cost more than the item.
type puller struct {
	target  string
	cancel  context.CancelFunc
	pull    func() (Update, error, bool) // of iter.Pull2: runs the resolver until its next item
	stop    func()                       // of iter.Pull2: ends the resolver
	pending chan message                 // receives the next message from another goroutine; nil without one
}

// newPuller returns a puller for the items of r. The caller must close it.
func newPuller(ctx context.Context, r Resolver, target string) *puller {
	ctx, cancel := context.WithCancel(ctx)
	p := &puller{target: target, cancel: cancel}
	p.pull, p.stop = iter.Pull2(func(yield func(Update, error) bool) {
		// Pull2 panics again in the consumer. The error tells where the first panic occurred.
		if err := panics.Contain(func() { r.Resolve(ctx, target)(yield) }); err != nil {
			panic(err)
		}
	})
	return p
}

// next waits for the next message. If deadline is not zero and passes before one arrives, next returns
// the zero message; a later call then returns the one that was being waited for. In the last message,
// ended is set.
func (p *puller) next(deadline time.Time) message {
	if p.pending == nil {
		if deadline.IsZero() {
			return p.receive()
		}
		// A coroutine cannot be waited for with a timer, so a goroutine receives the item. The buffer
		// lets it end after next has returned.
		pending := make(chan message, 1)
		go func() { pending <- p.receive() }()
		p.pending = pending
	}
	// A nil channel is never ready: without a deadline, the select waits for the message alone.
	var passed <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case m := <-p.pending:
		p.pending = nil // the goroutine has ended; the next call may pull directly
		return m
	// p.pending stays, so that the next call waits for the same item.
	case <-passed:
		return message{}
	}
}

// receive pulls the next item. If the resolver panics, that becomes an error, and the resolver has
// then ended.
func (p *puller) receive() (m message) {
	// Whether an item was pulled. It stays false after the resolver's end.
	ok := false
	err := panics.Do("the resolver", func() error {
		m.update, m.err, ok = p.pull()
		return nil
	})
	if err != nil {
		return message{err: fmt.Errorf("resolve %q: %w", p.target, err)}
	}
	m.ended = !ok || errors.Is(m.err, ErrUnresolvable)
	return m
}

// close ends the resolver and waits until it has returned.
func (p *puller) close() {
	p.cancel()
	// A goroutine may still be running the coroutine, in which case stop must not be called.
	if p.pending != nil {
		<-p.pending
	}
	_ = panics.Contain(p.stop)
}
