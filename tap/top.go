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

// leastEvery is the shortest interval that a TopRequest may ask for, and defaultEvery the one without
// the field every.
const (
	leastEvery   = 100 * time.Millisecond
	defaultEvery = time.Second
)

// Top counts this process's requests that match req from now on. It yields the rows once per interval:
// req.Every, or by default one second. When ctx ends, its cause is the last item. Top does not keep or send
// the requests.
//
// The requests of a row have the same client, endpoint, direction, method and path, or what req selects
// instead; see "Rows of Top" in the package documentation.
//
// A success is a response for which [ResponseEnd.Failed] returns false. Quantiles are accurate to 5 % up to
// 4.5 minutes. The rate is how many requests ended per second during about the last ten seconds, or the last
// interval if that is longer.
//
// A call counts as a watcher, see [WithCapacity]. An invalid or rejected req yields one error with the gRPC
// status InvalidArgument, PermissionDenied or ResourceExhausted.
func (r *Registry) Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		c, err := r.count(req)
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.detach(c)
		if c.sendRows(ctx, func(m *tappb.TopResponse) bool { return yield(m, nil) }) {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

// counter is one call of Top, with its condition and the rows in which it counts the requests
// that match.
type counter struct {
	match *condition
	rows  *table
	every time.Duration // the interval between two answers
	most  uint32        // how many rows an answer may have; 0 means defaultRows
}

// count adds a counter for a call of Top, which counts as a watcher for WithCapacity. The caller must
// call detach for it in the end. Errors are of type rejection.
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

// detach removes the counter c, so that it sees no new requests. Requests in flight still
// count in its rows.
func (r *Registry) detach(c *counter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = slices.DeleteFunc(r.counters, func(other *counter) bool { return other == c })
	r.publish()
}

// everyOf returns the interval that req asks for, or the default.
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

// sendRows calls yield with the current rows once per interval. It returns true when ctx has
// ended, and false when yield has returned false.
func (c *counter) sendRows(ctx context.Context, yield func(*tappb.TopResponse) bool) (ended bool) {
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

// Top implements gotower's service with [Registry.Top]. It sends the response headers at
// once, and counts the requests that match from then on.
func (o gotowerTap) Top(req *tappb.TopRequest, stream grpc.ServerStreamingServer[tappb.TopResponse]) error {
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
	ctx, cancel := o.server.withShutdown(stream.Context())
	defer cancel()
	if c.sendRows(ctx, func(m *tappb.TopResponse) bool {
		err = stream.Send(m)
		return err == nil
	}) {
		return ended(ctx)
	}
	return err
}

// Top yields the rows for the process at the other end of conn, see [Registry.Top]. The process
// must serve gotower's service ([Server.Register]). Each range over the sequence is one call. A
// failed call yields an error as its last item. If ctx has ended, that error is ctx's cause.
// Breaking from the range releases the stream. You close conn.
func Top(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.TopRequest, opts ...grpc.CallOption,
) iter.Seq2[*tappb.TopResponse, error] {
	return stream(ctx, "top", func(m *tappb.TopResponse) *tappb.TopResponse { return m },
		func(ctx context.Context) (grpc.ServerStreamingClient[tappb.TopResponse], error) {
			return tappb.NewTapClient(conn).Top(ctx, req, opts...)
		})
}
