package tap

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reader takes the events of one watcher out of its buffer and sends them in order.
type reader struct {
	*watcher
	unread *buffer
	send   func(Event) error
	rate   *rate.Limiter // limit of events per second; nil means no limit

	reportsDrops bool
	reported     uint64 // number of dropped events that were reported
}

// reader returns the reader that takes the events of w out of the buffer and calls send with
// each. If reportsDrops is true, the reader also sends events with the number of dropped events.
// A watcher must have only one reader.
func (w *watcher) reader(reportsDrops bool, send func(Event) error) *reader {
	return &reader{watcher: w, unread: w.buf.Load(), send: send, reportsDrops: reportsDrops}
}

// run sends events until the watch ends. It returns nil if the number of requests has reached
// the limit, or if the duration is over. It returns an error if send fails or ctx ends.
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
	filled := r.filled
	for {
		var err error
		select {
		case e := <-r.unread.events:
			err = r.forward(ctx, e)
		case <-r.dropSignal:
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

// ended returns the error of a stream with the context ctx, which has ended. If the server is
// shutting down, it is errDown. Otherwise it is the gRPC status of the error of ctx.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errDown) {
		return errDown
	}
	return status.FromContextError(ctx.Err()).Err()
}

// forward waits until the event rate allows one more event, and then sends e. If events were
// dropped, it first sends an event with their number.
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

// drain ends the watch and sends the events that the buffer still has. Later events of
// requests in flight are not added to the buffer.
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
