package tap

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/tap/tappb"
)

const (
	leastEvery   = 100 * time.Millisecond
	defaultEvery = time.Second
)

// Top counts the requests of this process that match req, from now on, and yields
// the rows at intervals until ctx ends. The last item is then the cause of ctx.
// Counting keeps nothing of a request and sends nothing.
//
// The requests of a row have the same client, endpoint, direction, method and
// path; or route, or endpoint and direction alone, as req says. Clients and
// endpoints are pods, or addresses without their ports. Paths and names are cut
// to 256 bytes. Requests beyond 1000 rows count in one row with the path or route
// "(other)".
//
// A row without a request for ten minutes is removed, and after one
// minute if there are 1000. A row with a running request stays.
//
// A success is a response with a status below 500 that was not reset and has no
// gRPC status Unknown, DeadlineExceeded, Internal, Unavailable or DataLoss. The
// losing request of a [layer.Hedge] is a failure, as in linkerd. Quantiles are
// within 5 % up to 4.5 minutes. The rate is that of ended requests, with a time
// constant of ten seconds, or of Every if that is longer.
//
// A call counts as a watcher, see [WithCapacity]. An error is the only item. Its
// gRPC status is InvalidArgument, PermissionDenied or ResourceExhausted.
func (r *Registry) Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		c, err := r.count(req)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.detach(c)
		if c.each(ctx, func(m *tappb.TopResponse) bool { return yield(m, nil) }) {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

// counter is one call of Top.
type counter struct {
	match *condition
	rows  *table
	every time.Duration
	most  uint32
}

// count starts a counter, which detach ends. It counts as a watcher.
func (r *Registry) count(req *tappb.TopRequest) (*counter, error) {
	every, err := everyOf(req)
	if err != nil {
		return nil, reject(codes.InvalidArgument, err)
	}
	match, err := r.filter(req.GetMatch(), req.GetHeaders())
	if err != nil {
		return nil, err
	}
	c := &counter{match: match, rows: newTable(req), every: every, most: req.GetRows()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(); err != nil {
		return nil, err
	}
	r.counters = append(r.counters, c)
	r.publish()
	return c, nil
}

// detach ends a counter. Requests in flight still count in its rows.
func (r *Registry) detach(c *counter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = slices.DeleteFunc(r.counters, func(other *counter) bool { return other == c })
	r.publish()
}

func everyOf(req *tappb.TopRequest) (time.Duration, error) {
	if req.GetEvery() == nil {
		return defaultEvery, nil
	}
	if err := req.GetEvery().CheckValid(); err != nil {
		return 0, fmt.Errorf("every: %w", err)
	}
	every := req.GetEvery().AsDuration()
	if every < leastEvery {
		return 0, fmt.Errorf("every: %v is less than %v", every, leastEvery)
	}
	return every, nil
}

// each yields the rows at intervals. It returns true when ctx ends, and false when
// yield does.
func (c *counter) each(ctx context.Context, yield func(*tappb.TopResponse) bool) (ended bool) {
	answers := time.NewTicker(c.every)
	defer answers.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-answers.C:
			if !yield(c.rows.answer(c.most)) {
				return false
			}
		}
	}
}

// Top serves one client with rows. It sends its headers at once: every request
// that matches is counted from then on.
func (o own) Top(req *tappb.TopRequest, stream grpc.ServerStreamingServer[tappb.TopResponse]) error {
	if err := o.server.access.permit(stream.Context()); err != nil {
		return err
	}
	c, err := o.server.reg.count(req)
	if err != nil {
		return err
	}
	defer o.server.reg.detach(c)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	ctx, cancel := o.server.untilDown(stream.Context())
	defer cancel()
	if c.each(ctx, func(m *tappb.TopResponse) bool {
		err = stream.Send(m)
		return err == nil
	}) {
		return ended(ctx)
	}
	return err
}

// Top yields the rows of the process at the other end of conn, which serves
// gotower's own service, see [Registry.Top] and [Server.Register]. One range over
// the sequence is one call. An error is its last item, the cause of ctx among
// them. Breaking from the range releases the stream. conn stays the caller's.
func Top(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.TopRequest, opts ...grpc.CallOption,
) iter.Seq2[*tappb.TopResponse, error] {
	return stream(ctx, "top", func(m *tappb.TopResponse) *tappb.TopResponse { return m },
		func(ctx context.Context) (grpc.ServerStreamingClient[tappb.TopResponse], error) {
			return tappb.NewTapClient(conn).Top(ctx, req, opts...)
		})
}
