package tap

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reader sends the events of one watcher in the order of its buffer.
type reader struct {
	*watcher
	unread *buffer
	send   func(Event) error
	rate   *rate.Limiter // of events; nil for no limit

	reportsDrops bool
	reported     uint64 // dropped events
}

// reader returns the one reader of w.
func (w *watcher) reader(reportsDrops bool, send func(Event) error) *reader {
	return &reader{watcher: w, unread: w.buf.Load(), send: send, reportsDrops: reportsDrops}
}

// run returns nil after the last event, or else the first error: of send, or of
// ctx.
func (r *reader) run(ctx context.Context) error {
	over := make(chan struct{})
	if r.duration > 0 {
		// Not part of the loop, because send may wait for its client while requests
		// must no longer be matched.
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
			err = r.forward(ctx, e)
		case <-r.lost:
			err = r.reportDrops(ctx)
		case <-filled:
			r.reg.refresh()
			filled = nil
		case <-r.done:
			return r.drain(ctx)
		case <-over:
			return r.drain(ctx)
		case <-ctx.Done():
			return ended(ctx)
		}
		if err != nil {
			return err
		}
	}
}

var errDown = reject(codes.Unavailable, errors.New("the server is shutting down"))

// ended returns the error of a stream whose context has ended.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errDown) {
		return errDown
	}
	return status.FromContextError(ctx.Err()).Err()
}

// forward sends an event, after the number of those that were dropped before it.
func (r *reader) forward(ctx context.Context, e Event) error {
	if err := r.reportDrops(ctx); err != nil {
		return err
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.unread.took(e)
	return r.send(r.shown(e))
}

// reportDrops sends how many events were dropped since the last report.
func (r *reader) reportDrops(ctx context.Context) error {
	n := r.dropped.Load() - r.reported
	if n == 0 || !r.reportsDrops {
		return nil
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.reported += n
	return r.send(Event{Dropped: n})
}

// wait waits until the rate admits one more event.
func (r *reader) wait(ctx context.Context) error {
	if r.rate == nil || r.rate.Wait(ctx) == nil {
		return nil
	}
	if ctx.Err() == nil { // the deadline is before the next event
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return ended(ctx)
}

// drain sends the rest of the buffer. Requests that end after the duration of
// the watcher add nothing to it.
func (r *reader) drain(ctx context.Context) error {
	r.buf.Store(nil)
	for {
		select {
		case e := <-r.unread.events:
			if err := r.forward(ctx, e); err != nil {
				return err
			}
		default:
			return r.reportDrops(ctx)
		}
	}
}
