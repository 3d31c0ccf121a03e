package tap

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/tap/tappb"
)

const (
	leastEvery   = 100 * time.Millisecond
	defaultEvery = time.Second

	// sampleEvery is how often rates are brought up to date, at least.
	sampleEvery = time.Second
)

// Top counts the requests of this process that req asks for, from now on, and
// yields the rows again and again until ctx ends; its cause is then the last
// item. Nothing of a request is kept or sent: counting costs a few hundred
// nanoseconds, however slowly the rows are read.
//
// A row is what requests have in common: the client's pod, or its address
// without the port; the endpoint's, likewise; the direction; and method and
// path, or by route the label "route" of the route, [DEFAULT] if there is none.
// By destination it is the endpoint and the direction alone. Authority, and
// Route where rows are by method and path, are those of the row's first request.
// Paths and names are cut to 256 bytes. There are at most 1000 rows, and 128 KiB
// of text in them; what comes after that is counted in one row, whose path (or
// route) is "(other)". It takes about 1.2 MiB.
//
// A row that had no request for ten minutes (see [RowTTL]) is let go, or for one
// minute if there is no room for others: it is no longer among the rows, what it
// counted is in "(other)" from then on, and the next such request begins a new row.
// No sum over all rows ever falls, and while a request runs, its row stays.
//
// A success is a request with a response, below 500, that was not reset and
// whose gRPC status is none of Unknown, DeadlineExceeded, Internal, Unavailable
// and DataLoss. That is linkerd's figure: what its caller cancelled has ended
// without success, and so has, of a [layer.Hedge], the request that lost. Where
// requests are hedged, layer.Metrics above the Hedge says how callers fared, and
// rows say how endpoints did. Quantiles are within 5 % up to 4.5 minutes; best, worst and last
// are exact. The rate is that of the requests that ended, each counting e times
// less for every ten seconds of its age.
//
// It counts as one who watches, see [WithCapacity]. For errors, which are the only
// item then, [google.golang.org/grpc/status.Code] gives InvalidArgument,
// PermissionDenied (a condition on a header whose value is withheld) or
// ResourceExhausted.
func (r *Registry) Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		c, err := r.count(req)
		if err != nil {
			yield(nil, err)
			return
		}
		defer c.stop()
		if c.each(ctx, nil, func(m *tappb.TopResponse) bool { return yield(m, nil) }) {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

// counting is one call of Top.
type counting struct {
	rows  *table
	every time.Duration
	most  uint32
	stop  func()
}

// count starts counting. Stop must be called.
func (r *Registry) count(req *tappb.TopRequest) (*counting, error) {
	every, err := everyOf(req)
	if err != nil {
		return nil, refuse(codes.InvalidArgument, err)
	}
	match, err := r.filter(req.GetMatch(), req.GetHeaders())
	if err != nil {
		return nil, err
	}
	c := &counting{rows: tableOf(req, r.keepRows), every: every, most: req.GetRows()}
	if c.stop, err = r.attach(match, c.rows); err != nil {
		return nil, refuse(codes.ResourceExhausted, err)
	}
	return c, nil
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

// each yields the rows until yield returns false, or until ctx or down ends:
// then it returns true.
func (c *counting) each(ctx context.Context, down <-chan struct{}, yield func(*tappb.TopResponse) bool) (ended bool) {
	answers := time.NewTicker(c.every)
	defer answers.Stop()
	samples := time.NewTicker(sampleEvery)
	defer samples.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-down:
			return true
		case now := <-samples.C:
			c.rows.sample(now)
		case <-answers.C:
			if !yield(c.rows.answer(time.Now(), c.most)) {
				return false
			}
		}
	}
}

// Top yields the rows of the process at the other end of conn, which serves
// gotower's own service, see [Registry.Top] and [Server.Register]. One range over
// the sequence is one call; an error is its last item, the cause of ctx among
// them. Breaking from the range releases the stream. conn stays the caller's.
func Top(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.TopRequest, opts ...grpc.CallOption,
) iter.Seq2[*tappb.TopResponse, error] {
	call := func(ctx context.Context) (grpc.ServerStreamingClient[tappb.TopResponse], error) {
		return tappb.NewTapClient(conn).Top(ctx, req, opts...)
	}
	return func(yield func(*tappb.TopResponse, error) bool) {
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		err := receive(calling, call, func(m *tappb.TopResponse) bool { return yield(m, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		default:
			yield(nil, fmt.Errorf("tap: top: %w", err))
		}
	}
}
