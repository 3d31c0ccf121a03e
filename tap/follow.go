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

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	streams "github.com/gotower/gotower/internal/stream"
	"github.com/gotower/gotower/tap/tappb"
)

// Process is one that shows its requests: it serves gotower's tap, see
// [Server.Register], or linkerd's alone.
type Process struct {
	Name string // what it is called in what is seen, and in errors
	Conn grpc.ClientConnInterface
}

// ProcessEvent is an event and the name of the process that it is from.
type ProcessEvent struct {
	From  string
	Event Event
}

// Follow watches several processes at once, and goes on when one of them
// restarts, appears late or cannot be reached. Their events come as they
// arrive; StreamIDs of several processes may be the same.
//
//	for seen, err := range tap.Follow(ctx, processes, &tappb.WatchRequest{}) {
//
// Errors are news: each begins with the name of the process, which is asked
// again after a while, see [WithBackoff]. A process that refuses (InvalidArgument,
// PermissionDenied, Unauthenticated) is not asked again. Limit and duration of
// req hold for each process, over all the times that it is asked. The sequence
// ends when no process is left, or with the cause of ctx as its last item.
// Breaking from the range releases all streams. Connections stay the caller's;
// give them a back-off of a few seconds at the most (grpc.WithConnectParams), or
// they wait up to two minutes for a process that was away.
//
// Of a process that has linkerd's tap only, [WithMaxRPS] bounds the requests. What
// that cannot do is refused (conditions on headers and responses, a sample) or
// left out (bodies, explanations).
//
// Who does not keep up makes the processes drop events, and is told so. That a
// process froze while nothing is sent is for the keep-alive of its connection.
func Follow(ctx context.Context, processes []Process, req *tappb.WatchRequest, opts ...FollowOption) iter.Seq2[ProcessEvent, error] {
	o := newFollowOptions(opts)
	return func(yield func(ProcessEvent, error) bool) {
		all := make([]source[ProcessEvent], 0, len(processes))
		for _, p := range processes {
			q := newQuota(req)
			all = append(all, func(ctx context.Context) iter.Seq2[ProcessEvent, error] {
				return o.follow(ctx, p, len(processes), q)
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

// errDone ends the following of a process that showed what was asked for.
var errDone = errors.New("done")

type followOptions struct {
	rps      int
	patience time.Duration
	backoff  backoff.Backoff
	keepRows RowTTL
}

// follow watches one process again and again.
func (o *followOptions) follow(ctx context.Context, p Process, of int, q *quota) iter.Seq2[ProcessEvent, error] {
	open := func(ctx context.Context) iter.Seq2[Event, error] { return o.watch(ctx, p, of, q) }
	return func(yield func(ProcessEvent, error) bool) {
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

// isFinal reports whether asking again is of no use.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, errDone)
}

// watch watches one process once: by linkerd's service if it does not have
// ours.
func (o *followOptions) watch(ctx context.Context, p Process, of int, q *quota) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		req := q.rest()
		if req == nil {
			yield(Event{}, errDone)
			return
		}
		conn := prompt{ClientConnInterface: p.Conn, patience: o.patience}
		for e, err := range instead(Watch(ctx, conn, req), o.plain(ctx, conn, of, req)) {
			q.count(e)
			if !yield(e, err) || err != nil {
				return
			}
		}
		if q.rest() == nil {
			yield(Event{}, errDone)
		}
	}
}

// FollowOption says how [Follow] and [FollowTop] follow.
type FollowOption interface{ applyFollow(o *followOptions) }

type followOption func(*followOptions)

func (f followOption) applyFollow(o *followOptions) { f(o) }

// WithMaxRPS bounds how many requests a second are asked of processes that have
// linkerd's tap only, all together; each has an equal share. The default is 100,
// also for what is 0 or less.
func WithMaxRPS(n int) FollowOption {
	return followOption(func(o *followOptions) { o.rps = n })
}

// WithAnswerTimeout is how long a process may take to answer. The default is 10 s, also
// for what is 0 or less.
func WithAnswerTimeout(d time.Duration) FollowOption {
	return followOption(func(o *followOptions) { o.patience = d })
}

// WithBackoff is how long to wait before a process is asked again: least after the
// first time, and up to most after several, with some jitter. The defaults are
// 100 ms and 10 s, also for what is 0 or less; most is at least least.
func WithBackoff(least, most time.Duration) FollowOption {
	return followOption(func(o *followOptions) { o.backoff.Min, o.backoff.Max = least, most })
}

func newFollowOptions(opts []FollowOption) followOptions {
	var o followOptions
	for _, opt := range opts {
		if opt != nil {
			opt.applyFollow(&o)
		}
	}
	o.rps = min(orDefault(o.rps, 100), math.MaxInt32) // which an int has room for everywhere
	if o.patience <= 0 {
		o.patience = 10 * time.Second
	}
	if o.backoff.Max <= 0 {
		o.backoff.Max = max(10*time.Second, o.backoff.Min)
	}
	o.backoff.Jitter = backoff.Default().Jitter
	o.backoff = o.backoff.OrDefault()
	return o
}

// share is how many requests each of n processes may be asked for in what time.
func (o *followOptions) share(n int) (each uint32, every time.Duration) {
	if n <= o.rps {
		return uint32(o.rps / max(n, 1)), time.Second
	}
	return 1, time.Second * time.Duration(n) / time.Duration(o.rps)
}

// source is a sequence that ends with its context.
type source[T any] func(context.Context) iter.Seq2[T, error]

// merged is what comes from all sources, as it comes. It ends when all have, or
// with ctx; then nothing of it is left behind.
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

// detached is ctx without its deadline. gRPC tells a deadline to the other side,
// which would then end a stream just before ctx does, and look as if it failed.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return within, func() {
		stop()
		cancel()
	}
}

// instead is first, or second if first is not implemented.
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

// prompt is a connection whose streams fail if they are not answered in time,
// or if they fall silent. gRPC itself waits for ever: on a process that was
// stopped, or on a port that something else listens to.
type prompt struct {
	grpc.ClientConnInterface
	patience time.Duration // for the headers of the answer, and beyond between
	between  time.Duration // two messages; 0 is for ever
}

// NewStream begins a stream. What it starts ends with ctx.
func (p prompt) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if p.ClientConnInterface == nil {
		return nil, status.Error(codes.InvalidArgument, "the process has no connection")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &prompted{prompt: p}
	s.timer = time.AfterFunc(p.patience, func() {
		cancel(status.Errorf(codes.DeadlineExceeded, "no answer for more than %v", p.patience))
	})
	defer s.timer.Stop()
	var stream grpc.ClientStream
	err := panics.Do("the connection", func() (err error) {
		stream, err = p.ClientConnInterface.NewStream(ctx, desc, method, opts...)
		return err
	})
	if err != nil {
		return nil, silence(ctx, err)
	}
	s.ClientStream = stream
	return s, nil
}

type prompted struct {
	grpc.ClientStream
	prompt   prompt
	timer    *time.Timer
	answered bool
}

func (s *prompted) RecvMsg(m any) error {
	return panics.Do("the stream", func() error { return s.receive(m) })
}

func (s *prompted) receive(m any) error {
	defer s.timer.Stop()
	if !s.answered {
		s.timer.Reset(s.prompt.patience)
		if _, err := s.Header(); err != nil {
			return silence(s.Context(), err)
		}
		s.timer.Stop()
		s.answered = true
	}
	if s.prompt.between > 0 {
		s.timer.Reset(sum(s.prompt.between, s.prompt.patience))
	}
	return silence(s.Context(), s.ClientStream.RecvMsg(m))
}

// sum is a + b, or as long as there is if that is more.
func sum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// silence returns why ctx ended, if it was for want of an answer, or else err.
func silence(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && status.Code(cause) == codes.DeadlineExceeded {
		return cause
	}
	return err
}
