package resolve

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
)

// message is an item of one of several sources.
type message struct {
	from   int // number of the source
	update Update
	err    error
	ended  bool // nothing more comes from this source; err says why
}

// feed reads a source in a goroutine of its own, for a stream that waits for
// more than one thing.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startFeed sends what r says of target until the feed is closed or r ends. A panic
// of r is an error, and its end.
// into must have no buffer: so nothing of a closed feed is left in it.
func startFeed(ctx context.Context, r Resolver, target string, from int, into chan<- message) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer cancel()
		send := func(m message) bool {
			m.from = from
			select {
			case into <- m:
				return !m.ended
			case <-ctx.Done():
				return false
			}
		}
		open := true
		err := panics.Do("the resolver", func() error {
			for u, err := range r.Resolve(ctx, target) {
				if open = send(message{update: u, err: err, ended: errors.Is(err, ErrUnresolvable)}); !open {
					break
				}
			}
			return nil
		})
		if err != nil && open {
			open = send(message{err: fmt.Errorf("resolve %q: %w", target, err)})
		}
		if open {
			send(message{err: fmt.Errorf("resolve %q: %w", target, stream.ErrEnded), ended: true})
		}
	}()
	return f
}

// close ends the feed and waits until its source has let go. It may be called
// again, and on nil.
func (f *feed) close() {
	if f != nil {
		f.cancel()
		<-f.done
	}
}

// feeds are several that end together.
type feeds []*feed

// close ends all of them, and then waits.
func (list feeds) close() {
	for _, f := range list {
		f.cancel()
	}
	for _, f := range list {
		f.close()
	}
}
