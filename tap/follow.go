package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	streams "github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap/tappb"
)

// Process is a process that [Follow] and [FollowTop] watch. It must serve gotower's tap
// ([Server.Register]) or linkerd's tap.
type Process struct {
	Name string // appears in events and errors
	Conn grpc.ClientConnInterface
}

// ProcessEvent is an event and the name of the process that sent it.
type ProcessEvent struct {
	From  string
	Event Event
}

// Follow yields events from several processes as they arrive. It continues while a process
// restarts, has not started yet or cannot be reached. Equal StreamIDs from different processes do
// not mean the same request.
//
//	for e, err := range tap.Follow(ctx, processes, &tappb.WatchRequest{}) {
//
// After an error, the process is called again after a backoff of 100 ms to 10 s. The error text
// begins with the process name. A process is not called again after InvalidArgument,
// PermissionDenied or Unauthenticated, or when it has sent as many requests as req's limit, which
// counts again after a restart. The sequence ends when Follow does not call any process again, or
// when req's duration is over. When ctx ends, its cause is the last item.
//
// Breaking from the range releases all streams. You close the connections. They need a
// keep-alive, and a backoff (grpc.WithConnectParams) of at most a few seconds.
//
// A process that serves only linkerd's tap shows at most 100 requests a second, or req's MaxRps,
// and neither bodies nor explanations. For it, a sample in req, or a condition on headers or
// responses, is an error. If you read too slowly, processes drop events and report how many.
func Follow(ctx context.Context, processes []Process, req *tappb.WatchRequest) iter.Seq2[ProcessEvent, error] {
	return func(yield func(ProcessEvent, error) bool) {
		if err := checkNumbers(req); err != nil {
			yield(ProcessEvent{}, reject(codes.InvalidArgument, err))
			return
		}
		// The duration begins now, also for a stream that is opened later.
		var until time.Time
		if d := req.GetDuration(); d != nil {
			until = time.Now().Add(d.AsDuration())
		}
		all := make([]source[ProcessEvent], 0, len(processes))
		for _, p := range processes {
			all = append(all, func(ctx context.Context) iter.Seq2[ProcessEvent, error] {
				return follow(ctx, p, req, until)
			})
		}
		for seen, err := range merged(ctx, all) {
			if !yield(seen, err) {
				return
			}
		}
		if ctx.Err() != nil {
			yield(ProcessEvent{}, fmt.Errorf("tap: follow: %w", context.Cause(ctx)))
		}
	}
}

// errDone is the last error that watchProcess yields for a process that has reached the request's
// limit or duration. The process is then not called again.
var errDone = errors.New("done")

// lateEnd is how long a stream may stay open after the duration of the request is over.
// Follow then cancels the stream.
const lateEnd = time.Second

// followBackoff returns the backoff before a process is called again: 100 ms to 10 s.
func followBackoff() backoff.Backoff {
	return backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second, Jitter: backoff.Default().Jitter}
}

// follow watches one process, and opens a new stream when one ends, with a backoff. At the time until,
// the process should end its stream; if it has not lateEnd later, follow cancels it. A zero until sets
// no limit.
func follow(
	ctx context.Context, p Process, req *tappb.WatchRequest, until time.Time,
) iter.Seq2[ProcessEvent, error] {
	return func(yield func(ProcessEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if !until.IsZero() {
			// A timer and not a deadline of ctx, which gRPC would send to the process: see withoutDeadline.
			// Normally the process ends the stream before.
			defer time.AfterFunc(time.Until(until.Add(lateEnd)), cancel).Stop()
		}
		// open opens one stream to the process. Reconnect calls it again when the stream has ended.
		open := func(ctx context.Context) iter.Seq2[Event, error] {
			return func(yield func(Event, error) bool) {
				if !until.IsZero() {
					req = proto.CloneOf(req) // a new stream gets the rest of the time
					// At least 1 ns, because a duration must be positive.
					req.Duration = durationpb.New(max(time.Until(until), 1))
				}
				containPanics(watchProcess(ctx, p, req))(yield)
			}
		}
		for e, err := range streams.Reconnect(ctx, followBackoff(), open, isFinal) {
			if errors.Is(err, errDone) {
				return
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", p.Name, err)
			}
			if !yield(ProcessEvent{From: p.Name, Event: e}, err) {
				return
			}
		}
	}
}

// isFinal reports whether a process that failed with err must not be called again.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errDone)
}

// watchProcess watches one process with one stream, and yields its events. If the process does not
// serve gotower's tap service, watchProcess uses linkerd's.
func watchProcess(ctx context.Context, p Process, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := p.check(); err != nil {
			yield(Event{}, err)
			return
		}
		for e, err := range Watch(ctx, p.Conn, req) {
			if status.Code(err) == codes.Unimplemented {
				for e, err := range watchLinkerd(ctx, p.Conn, req) {
					if !yield(e, err) || err != nil {
						return
					}
				}
				break
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
		// The stream has ended without an error, so the limit or the duration was reached.
		if req.GetLimit() > 0 || req.GetDuration() != nil {
			yield(Event{}, errDone)
		}
	}
}

// check returns an error if p cannot be called.
func (p *Process) check() error {
	if p.Conn == nil {
		return reject(codes.InvalidArgument, errors.New("the process has no connection"))
	}
	return nil
}

// source starts a sequence, such as the events of one process, that must end when the context ends.
type source[T any] func(context.Context) iter.Seq2[T, error]

// merged yields the items of all sources as they arrive. It runs each source on its own goroutine, and
// ends when all sources or ctx have ended, or when the range loop does. All goroutines have ended when
// it returns.
func merged[T any](ctx context.Context, sources []source[T]) iter.Seq2[T, error] {
	type item struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := withoutDeadline(ctx)
		items := make(chan item)
		var running sync.WaitGroup
		for _, one := range sources {
			running.Go(func() {
				for value, err := range one(ctx) {
					select {
					case items <- item{value, err}:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		go func() {
			running.Wait()
			close(items)
		}()
		defer func() {
			cancel()
			for range items {
				continue // until all have ended
			}
		}()
		for i := range items {
			if ctx.Err() != nil || !yield(i.value, i.err) {
				return
			}
		}
	}
}

// withoutDeadline returns a context that is canceled when ctx ends, but has no deadline. gRPC would
// send a deadline to the server, which could then fail the stream a little before ctx ends.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return within, func() {
		stop()
		cancel()
	}
}

// containPanics yields the items of seq. If seq panics, for example in a connection of the user, the
// panic becomes an error, which is the last item.
func containPanics[T any](seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stopped := false // the consumer broke
		err := panics.Do("the connection", func() error {
			for item, err := range seq {
				if stopped = !yield(item, err); stopped {
					break
				}
			}
			return nil
		})
		// After a break of the range loop, yield must not be called again.
		if err != nil && !stopped {
			var zero T
			yield(zero, err)
		}
	}
}
