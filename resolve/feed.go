package resolve

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
)

// message is one item that a feed or a puller has read from its resolver: an update, an error, or the
// end.
type message struct {
	index  int // index of the resolver in a Merge or Fallback
	update Update
	err    error
	ended  bool // whether this is the last item of the resolver; err is then the reason
}

// feed reads one resolver on its own goroutine and sends the items to a channel. Fallback and Merge use
// feeds to wait for several resolvers at once, which a range over an iterator cannot do.
type feed struct {
	cancel context.CancelFunc // ends the context of the resolver
	done   chan struct{}      // closed when the goroutine has ended
}

// startFeed starts a feed that sends the items of r to messages, until the feed is closed or r ends.
// messages must be unbuffered, so that no item of a closed feed is left in it. Each message carries
// index, by which its receiver identifies r. Unless the feed is closed, the last message has ended set. Its
// error matches ErrUnresolvable if r has yielded that, and otherwise stream.ErrEnded. If r panics, the panic
// is sent as an error before it.
func startFeed(ctx context.Context, r Resolver, target string, index int, messages chan<- message) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer cancel()
		// send reports whether the resolver may go on.
		send := func(m message) bool {
			m.index = index
			select {
			case messages <- m:
				// After the last message, the resolver must stop too.
				return !m.ended
			case <-ctx.Done():
				return false
			}
		}
		// open is false after the last message, or once the feed is closed. Then nothing more is sent.
		open := true
		// A panic of a foreign resolver must not end the process, which it would on this goroutine.
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

// close ends the feed and waits until its resolver has returned. A second call does
// nothing, and so does a call on a nil feed.
func (f *feed) close() {
	if f != nil {
		f.cancel()
		<-f.done
	}
}

// feeds is a list of feeds that are closed together.
type feeds []*feed

// close cancels all feeds before it waits for the first one, so that they end concurrently.
func (list feeds) close() {
	for _, f := range list {
		f.cancel()
	}
	for _, f := range list {
		f.close()
	}
}
