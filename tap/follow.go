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

// Process is a process that serves gotower's tap, see [Server.Register], or
// linkerd's alone.
type Process struct {
	Name string // in events and errors
	Conn grpc.ClientConnInterface
}

// ProcessEvent is an event and the name of its process.
type ProcessEvent struct {
	From  string
	Event Event
}

// Follow watches several processes at once. It continues when one of them
// restarts, appears late or cannot be reached. Their events come as they arrive.
// StreamIDs of several processes may be the same.
//
//	for seen, err := range tap.Follow(ctx, processes, &tappb.WatchRequest{}) {
//
// An error begins with the name of its process, which is asked again after a
// backoff, see [WithBackoff]. After InvalidArgument, PermissionDenied or
// Unauthenticated, and after limit requests, a process is not asked again. After a
// restart, limit counts from 0. The sequence ends when no process is left, when
// duration is over, or with the cause of ctx as its last item. Breaking from the
// range releases all streams. Connections stay the caller's. Their own backoff
// should be a few seconds at most (grpc.WithConnectParams).
//
// A process that has linkerd's tap only is watched in windows of [WithMaxRPS]
// requests. It rejects conditions on headers and responses and a sample, and shows
// no bodies and explanations.
//
// If the caller does not keep up, the processes drop events and report that. Only
// the keep-alive of a connection detects a process that hangs.
func Follow(ctx context.Context, processes []Process, req *tappb.WatchRequest, opts ...FollowOption) iter.Seq2[ProcessEvent, error] {
	o := newFollowOptions(opts, len(processes))
	return func(yield func(ProcessEvent, error) bool) {
		if err := sane(req); err != nil {
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

// errDone ends the following of a process that has shown all of the request.
var errDone = errors.New("done")

// lateEnd is how long the end of a process may come after the duration.
const lateEnd = time.Second

type followOptions struct {
	rps     int    // of all processes that have linkerd's tap only
	each    uint32 // the share of each
	backoff backoff.Backoff
}

// follow watches one process, and again when the stream ends, until a time if that
// is not zero.
func (o *followOptions) follow(
	ctx context.Context, p Process, req *tappb.WatchRequest, until time.Time,
) iter.Seq2[ProcessEvent, error] {
	return func(yield func(ProcessEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if !until.IsZero() {
			// Not a deadline, see detached. The process ends the stream before.
			defer time.AfterFunc(time.Until(until)+lateEnd, cancel).Stop()
		}
		open := func(ctx context.Context) iter.Seq2[Event, error] {
			return func(yield func(Event, error) bool) {
				if !until.IsZero() {
					req = proto.CloneOf(req)
					req.Duration = durationpb.New(max(time.Until(until), 1))
				}
				contained(o.watch(ctx, p, req))(yield)
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

// isFinal reports whether the process must not be asked again.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errDone)
}

// watch watches one process once, by linkerd's service if it does not have
// gotower's.
func (o *followOptions) watch(ctx context.Context, p Process, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := p.check(); err != nil {
			yield(Event{}, err)
			return
		}
		for e, err := range instead(Watch(ctx, p.Conn, req), o.plain(ctx, p.Conn, req)) {
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

// WithMaxRPS limits the requests a second of all processes that have linkerd's tap
// only. Each has an equal share, and at least one. 0 or less means 100.
func WithMaxRPS(n int) FollowOption {
	return followOption(func(o *followOptions) { o.rps = n })
}

// WithBackoff is the pause before a process is asked again: least after the first
// failure, and up to most after several, with jitter. The defaults are 100 ms and
// 10 s, also for 0 or less. A most below least is least.
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
	o.each = uint32(max(min(orDefault(o.rps, 100)/max(processes, 1), math.MaxInt32), 1))
	if o.backoff.Max <= 0 {
		o.backoff.Max = max(10*time.Second, o.backoff.Min)
	}
	o.backoff.Jitter = backoff.Default().Jitter
	o.backoff = o.backoff.OrDefault()
	return o
}

// source returns a sequence that ends with its context.
type source[T any] func(context.Context) iter.Seq2[T, error]

// merged yields the items of all sources as they come. It ends when all sources
// have, or with ctx, and waits for them.
func merged[T any](ctx context.Context, sources []source[T]) iter.Seq2[T, error] {
	type item struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := detached(ctx)
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

// detached returns ctx without its deadline, because gRPC sends a deadline to the
// server, which would end the stream before ctx, with an error.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return within, func() {
		stop()
		cancel()
	}
}

// instead yields first, or second if first fails with Unimplemented.
func instead[T any](first, second iter.Seq2[T, error]) iter.Seq2[T, error] {
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

// contained yields the items of seq. A panic of seq is its last error.
func contained[T any](seq iter.Seq2[T, error]) iter.Seq2[T, error] {
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
