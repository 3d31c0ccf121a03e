package tap

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reader takes a watcher's events out of its buffer and sends them in order.
type reader struct {
	*watcher
	unread *buffer
	send   func(Event) error
	rate   *rate.Limiter // limit of events per second; nil means no limit

	reportsDrops bool   // the numbers of dropped events are sent too
	reported     uint64 // number of dropped events that were reported
}

// reader returns the reader that takes w's events out of the buffer and calls send with each. If
// reportsDrops is true, the reader also reports how many events were dropped. There must be only
// one reader per watcher.
func (w *watcher) reader(reportsDrops bool, send func(Event) error) *reader {
	return &reader{watcher: w, unread: w.buf.Load(), send: send, reportsDrops: reportsDrops}
}

// run sends events until the watch ends, and returns nil if it ended because the limit or the duration
// was reached. It returns an error if send fails or ctx ends.
func (r *reader) run(ctx context.Context) error {
	over := make(chan struct{})
	if r.duration > 0 {
		// A timer of its own, because the loop may wait in send when the duration ends.
		timer := time.AfterFunc(r.duration, func() {
			r.expired.Store(true)
			r.reg.refresh()
			close(over)
		})
		defer timer.Stop()
	}
	filled := r.filled // nil after its first signal, so that the loop does not spin
	for {
		var err error
		select {
		case e := <-r.unread.events:
			err = r.forward(ctx, e)
		case <-r.dropSignal:
			err = r.reportDrops(ctx)
		// The limit is reached, so no new requests are shown. Those in flight go on until done is closed.
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

// ended returns the error for a stream whose context ctx has ended: errDown if the server is
// shutting down, and otherwise the gRPC status for ctx's error.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errDown) {
		return errDown
	}
	return status.FromContextError(ctx.Err()).Err()
}

// forward sends e when the rate limit allows it. If events were dropped before e, it first reports
// their number.
func (r *reader) forward(ctx context.Context, e Event) error {
	if err := r.reportDrops(ctx); err != nil {
		return err
	}
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.unread.releaseEvent(e)
	return r.send(r.shown(e))
}

// reportDrops sends an event with the number of events that were dropped since the last
// report. It sends nothing if none were dropped, or if the reader does not report them.
func (r *reader) reportDrops(ctx context.Context) error {
	n := r.dropped.Load() - r.reported
	if n == 0 || !r.reportsDrops {
		return nil
	}
	// The report is an event too, so it counts for the rate limit of events.
	if err := r.wait(ctx); err != nil {
		return err
	}
	r.reported += n
	return r.send(Event{Dropped: n})
}

// wait waits until the event rate of the server allows one more event. It returns an error
// if ctx ends first.
func (r *reader) wait(ctx context.Context) error {
	if r.rate == nil || r.rate.Wait(ctx) == nil {
		return nil
	}
	if ctx.Err() == nil { // the deadline is before the next event
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return ended(ctx)
}

// drain ends the watch when its limit or duration was reached: it sends the events that are still in
// the buffer. Requests in flight can add no further events.
func (r *reader) drain(ctx context.Context) error {
	// Nothing is added any more, so the loop ends when the buffer is empty.
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
