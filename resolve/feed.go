package resolve

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/stream"
)

// message is an item that a feed has read from its resolver.
type message struct {
	from   int // index of the resolver in a Merge or Fallback
	update Update
	err    error
	ended  bool // whether this is the last item of the resolver; err is then the reason
}

// feed reads one resolver on its own goroutine and sends the items to a channel.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startFeed starts a feed that sends the items of r to messages, until the feed is closed or r
// ends. messages must be unbuffered. Each message has the argument index, by which its receiver
// identifies r. A panic of r is sent as an error, followed by a message with the field ended set.
func startFeed(ctx context.Context, r Resolver, target string, index int, messages chan<- message) *feed {
	ctx, cancel := context.WithCancel(ctx)
	f := &feed{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		defer cancel()
		send := func(m message) bool {
			m.from = index
			select {
			case messages <- m:
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

// close cancels all feeds and then waits for them.
func (list feeds) close() {
	for _, f := range list {
		f.cancel()
	}
	for _, f := range list {
		f.close()
	}
}
