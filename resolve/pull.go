package resolve

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// puller reads one resolver for a consumer that sometimes has a deadline. The resolver runs as a
// coroutine. Without a deadline, an item therefore reaches the consumer without a wake-up of
// another goroutine, which would cost more than the item.
type puller struct {
	target  string
	cancel  context.CancelFunc
	pull    func() (Update, error, bool)
	stop    func()
	pending chan message // receives the next message from another goroutine; nil without one
}

// newPuller returns a puller for the items of r. The caller must close it.
func newPuller(ctx context.Context, r Resolver, target string) *puller {
	ctx, cancel := context.WithCancel(ctx)
	p := &puller{target: target, cancel: cancel}
	p.pull, p.stop = iter.Pull2(func(yield func(Update, error) bool) {
		// Pull2 panics again in the consumer. The error has the position of the first panic.
		if err := panics.Contain(func() { r.Resolve(ctx, target)(yield) }); err != nil {
			panic(err)
		}
	})
	return p
}

// next waits for the next message. If deadline is not zero and passes before, next returns the zero
// message. The last message has the field ended set.
func (p *puller) next(deadline time.Time) message {
	if p.pending == nil {
		if deadline.IsZero() {
			return p.receive()
		}
		pending := make(chan message, 1)
		go func() { pending <- p.receive() }()
		p.pending = pending
	}
	var passed <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case m := <-p.pending:
		p.pending = nil
		return m
	case <-passed:
		return message{}
	}
}

// receive pulls the next item. A panic of the resolver becomes an error, and the resolver has then
// ended.
func (p *puller) receive() (m message) {
	more := false
	err := panics.Do("the resolver", func() error {
		m.update, m.err, more = p.pull()
		return nil
	})
	if err != nil {
		return message{err: fmt.Errorf("resolve %q: %w", p.target, err)}
	}
	m.ended = !more || errors.Is(m.err, ErrUnresolvable)
	return m
}

// close ends the resolver and waits until it has returned.
func (p *puller) close() {
	p.cancel()
	if p.pending != nil {
		<-p.pending
	}
	_ = panics.Contain(p.stop)
}
