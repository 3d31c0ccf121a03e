package tap

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reader passes on what its watcher sees.
type reader struct {
	*watcher
	unread *buffer
	send   func(Event) error
	turns  turns

	tells bool // of drops, in between
	told  uint64
}

// reader returns the one reader of w.
func (w *watcher) reader(tells bool, send func(Event) error) *reader {
	return &reader{watcher: w, unread: w.buf.Load(), send: send, tells: tells}
}

// run returns nil when nothing more will come, and else what came between: an
// error of send, the end of ctx, or that of the server.
func (r *reader) run(ctx context.Context, down <-chan struct{}) error {
	over := make(chan struct{})
	if r.duration > 0 {
		// Requests are spared the look even while send waits for its client.
		timer := time.AfterFunc(r.duration, func() {
			r.expired.Store(true)
			r.reg.refresh()
			close(over)
		})
		defer timer.Stop()
	}
	filled := r.filled
	for {
		var err error
		select {
		case e := <-r.unread.events:
			r.gather(ctx, down, over)
			err = r.several(e)
		case <-r.lost:
			err = r.tell()
		case <-filled:
			r.reg.refresh()
			filled = nil
		case <-r.done:
			return r.rest()
		case <-over:
			return r.rest()
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-down:
			return errDown
		}
		if err != nil {
			return err
		}
	}
}

var errDown = refuse(codes.Unavailable, errors.New("the server is shutting down"))

// several sends an event that was received and, as far as one turn goes, those
// behind it: after the news of those that are missing before them.
func (r *reader) several(e Event) error {
	if err := r.tell(); err != nil {
		return err
	}
	n := 1 + min(len(r.unread.events), r.turns.more)
	if err := r.turns.wait(n); err != nil {
		return err
	}
	for {
		r.unread.took(e)
		if err := r.send(r.shown(e)); err != nil {
			return err
		}
		if n--; n == 0 {
			return nil
		}
		e = <-r.unread.events // nobody else receives
	}
}

// tell says how many events were dropped since it was last said.
func (r *reader) tell() error {
	n := r.dropped.Load() - r.told
	if n == 0 || !r.tells {
		return nil
	}
	if err := r.turns.wait(1); err != nil {
		return err
	}
	r.told += n
	return r.send(Event{Dropped: n})
}

// rest passes on what is left. Nothing is added to it any more: what comes late
// after the time of the watcher is over does not count.
func (r *reader) rest() error {
	r.buf.Store(nil)
	for {
		select {
		case e := <-r.unread.events:
			if err := r.several(e); err != nil {
				return err
			}
		default:
			return r.tell()
		}
	}
}
