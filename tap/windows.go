package tap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// windowTail is how long a window waits for the ends of its requests.
const windowTail = 10 * time.Second

// windows watches a process that has linkerd's tap only, which has a limit and no
// rate. A window is one call of Observe for up to each requests. The next window
// begins when the last request of this one has ended, or windowTail after each of
// them began, and not before a second is over.
type windows struct {
	observe func(ctx context.Context, limit uint32) iter.Seq2[Event, error]
	each    uint32
	left    uint64 // requests in all
	ended   func() // is called at the end of each window; may be nil
}

// plain watches a process that has linkerd's tap only.
func (o *followOptions) plain(ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if what := beyondLinkerd(req); what != "" {
			yield(Event{}, errBeyondLinkerd(what))
			return
		}
		if d := req.GetDuration(); d != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx) // without a deadline, see detached
			defer cancel()
			defer time.AfterFunc(d.AsDuration(), cancel).Stop()
		}
		w := o.windows(conn, req.GetMatch(), req.GetFields())
		w.left = cmp.Or(req.GetLimit(), w.left)
		w.each = min(w.each, cmp.Or(req.GetMaxRps(), w.each))
		w.all(ctx)(yield)
	}
}

// beyondLinkerd names a condition of req that linkerd's tap does not have.
func beyondLinkerd(req *tappb.WatchRequest) string {
	switch {
	case len(req.GetHeaders()) > 0:
		return "conditions on headers"
	case req.GetResponse() != nil:
		return "conditions on responses"
	case req.GetSample() > 0 && req.GetSample() < 1:
		return "samples"
	}
	return ""
}

func errBeyondLinkerd(what string) error {
	return reject(codes.InvalidArgument, fmt.Errorf("this process has linkerd's tap only, which has no %s", what))
}

func (o *followOptions) windows(conn grpc.ClientConnInterface, m *pb.ObserveRequest_Match, fields bool) *windows {
	if m.GetMatch() == nil {
		m = match.All()
	}
	observe := func(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
		req := &pb.ObserveRequest{Limit: limit, Match: m}
		if fields {
			req.Extract = match.Headers()
		}
		return Observe(ctx, conn, req)
	}
	return &windows{observe: observe, each: o.each, left: unlimited}
}

// all yields the events of all windows, until the first error or until nothing is
// left.
func (w *windows) all(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for w.left > 0 && ctx.Err() == nil {
			next := time.Now().Add(time.Second)
			if !w.one(ctx, yield) {
				return
			}
			if w.left > 0 {
				_ = backoff.Sleep(ctx, time.Until(next))
			}
		}
	}
}

var errNoTap = errors.New("it serves neither gotower's tap nor linkerd's")

// one yields the events of one window. It returns false after an error, and if
// yield does.
func (w *windows) one(ctx context.Context, yield func(Event, error) bool) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.ended != nil {
		defer w.ended()
	}
	limit := uint32(min(uint64(w.each), w.left))
	for e, err := range w.observe(ctx, limit) {
		switch {
		case err != nil && ctx.Err() != nil:
			return true // full, or the end of the duration
		case status.Code(err) == codes.Unimplemented:
			err = fmt.Errorf("%w: %w", errNoTap, err)
		case e.RequestInit != nil && limit > 0:
			w.left--
			if limit--; limit == 0 {
				defer time.AfterFunc(windowTail, cancel).Stop()
			}
		}
		if !yield(e, err) || err != nil {
			return false
		}
	}
	return true
}
