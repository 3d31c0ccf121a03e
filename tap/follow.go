package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
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

// Process is a process that serves gotower's tap ([Server.Register]) or only linkerd's.
type Process struct {
	Name string // appears in events and errors
	Conn grpc.ClientConnInterface
}

// ProcessEvent is an event and the name of its process.
type ProcessEvent struct {
	From  string
	Event Event
}

// Follow watches several processes and yields their events as they arrive. It continues
// when a process restarts, appears late or cannot be reached. StreamIDs of different
// processes may be equal.
//
//	for e, err := range tap.Follow(ctx, processes, &tappb.WatchRequest{}) {
//
// An error begins with the name of its process, which is then called again after a backoff
// ([WithBackoff]). After InvalidArgument, PermissionDenied or Unauthenticated, and when its limit
// is reached, a process is not called again. After a restart, the limit counts from 0. The sequence
// ends when no process is left, when the duration is over, or with the cause of ctx as its last
// item. Breaking from the range releases all streams. The caller keeps and closes the connections,
// whose own backoff should be a few seconds at most (grpc.WithConnectParams).
//
// A process with only linkerd's tap is watched in windows of [WithMaxRPS] requests. It
// rejects a sample and conditions on headers and responses, and shows neither bodies
// nor explanations. If the caller does not keep up, the processes drop events and
// report their number. Set a keep-alive on the connections to detect hanging processes.
func Follow(ctx context.Context, processes []Process, req *tappb.WatchRequest, opts ...FollowOption) iter.Seq2[ProcessEvent, error] {
	o := newFollowOptions(opts, len(processes))
	return func(yield func(ProcessEvent, error) bool) {
		if err := checkNumbers(req); err != nil {
			yield(ProcessEvent{}, reject(codes.InvalidArgument, err))
			return
		}
		var until time.Time
		if d := req.GetDuration(); d != nil {
			until = time.Now().Add(d.AsDuration())
		}
		all := make([]source[ProcessEvent], 0, len(processes))
		for _, p := range processes {
			all = append(all, func(ctx context.Context) iter.Seq2[ProcessEvent, error] {
				return o.follow(ctx, p, req, until)
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

// errDone ends the watch of a process that has sent all requested events.
var errDone = errors.New("done")

// lateEnd is how long Follow waits for the end of a stream after the duration is over.
const lateEnd = time.Second

type followOptions struct {
	rps        int    // requests a second of all processes with only linkerd's tap
	perProcess uint32 // the same for one process
	backoff    backoff.Backoff
}

// follow watches one process, and again each time its stream ends. It ends at until,
// unless that is zero.
func (o *followOptions) follow(
	ctx context.Context, p Process, req *tappb.WatchRequest, until time.Time,
) iter.Seq2[ProcessEvent, error] {
	return func(yield func(ProcessEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if !until.IsZero() {
			// Without a deadline, see withoutDeadline. Normally the process ends the stream before.
			defer time.AfterFunc(time.Until(until)+lateEnd, cancel).Stop()
		}
		open := func(ctx context.Context) iter.Seq2[Event, error] {
			return func(yield func(Event, error) bool) {
				if !until.IsZero() {
					req = proto.CloneOf(req)
					req.Duration = durationpb.New(max(time.Until(until), 1))
				}
				containPanics(o.watch(ctx, p, req))(yield)
			}
		}
		for e, err := range streams.Reconnect(ctx, o.backoff, open, isFinal) {
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

// isFinal reports whether the process must not be called again after err.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errDone)
}

// watch watches one process once. It uses linkerd's service if the process does not have gotower's.
func (o *followOptions) watch(ctx context.Context, p Process, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := p.check(); err != nil {
			yield(Event{}, err)
			return
		}
		for e, err := range orIfUnimplemented(Watch(ctx, p.Conn, req), o.watchLinkerd(ctx, p.Conn, req)) {
			if !yield(e, err) || err != nil {
				return
			}
		}
		if req.GetLimit() > 0 || req.GetDuration() != nil {
			yield(Event{}, errDone)
		}
	}
}

func (p *Process) check() error {
	if p.Conn == nil {
		return reject(codes.InvalidArgument, errors.New("the process has no connection"))
	}
	return nil
}

// FollowOption configures [Follow] and [FollowTop].
type FollowOption interface{ applyFollow(o *followOptions) }

type followOption func(*followOptions)

func (f followOption) applyFollow(o *followOptions) { f(o) }

// WithMaxRPS limits the requests a second of all processes with only linkerd's tap
// together. Each process gets an equal share, at least one. 0 or less means 100.
func WithMaxRPS(n int) FollowOption {
	return followOption(func(o *followOptions) { o.rps = n })
}

// WithBackoff sets the pause before a process is called again. It is least after the
// first failure, and grows up to most, with jitter. The defaults, also for 0 or less,
// are 100 ms and 10 s. If most is below least, it is least.
func WithBackoff(least, most time.Duration) FollowOption {
	return followOption(func(o *followOptions) { o.backoff.Min, o.backoff.Max = least, most })
}

func newFollowOptions(opts []FollowOption, processes int) followOptions {
	var o followOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyFollow(&o)
		}
	}
	o.perProcess = uint32(max(min(orDefault(o.rps, 100)/max(processes, 1), math.MaxInt32), 1))
	if o.backoff.Max <= 0 {
		o.backoff.Max = max(10*time.Second, o.backoff.Min)
	}
	o.backoff.Jitter = backoff.Default().Jitter
	o.backoff = o.backoff.OrDefault()
	return o
}

// source returns a sequence that ends when its context does.
type source[T any] func(context.Context) iter.Seq2[T, error]

// merged yields the items of all sources as they arrive. It ends when all sources have
// ended or ctx ends, and then waits for the goroutines of the sources.
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
// send a deadline to the server, which would fail the stream before ctx ends.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return within, func() {
		stop()
		cancel()
	}
}

// orIfUnimplemented yields first, or second if first fails with Unimplemented.
func orIfUnimplemented[T any](first, second iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for item, err := range first {
			if status.Code(err) == codes.Unimplemented {
				second(yield)
				return
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

// containPanics yields the items of seq. If seq panics, the last item is an error.
func containPanics[T any](seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stopped := false
		err := panics.Do("the connection", func() error {
			for item, err := range seq {
				if stopped = !yield(item, err); stopped {
					break
				}
			}
			return nil
		})
		if err != nil && !stopped {
			var zero T
			yield(zero, err)
		}
	}
}
