package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
