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
	ended  bool // the last item of this source; err is the reason
}

// feed reads a source on its own goroutine, for a stream with several events.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startFeed sends the items of r to the unbuffered channel into until the feed is closed
// or r ends. A panic of r is an error and its end.
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

// close ends the feed and waits until its source has returned. It may be called again,
// and for nil.
func (f *feed) close() {
	if f != nil {
		f.cancel()
		<-f.done
	}
}

// feeds are closed concurrently.
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
