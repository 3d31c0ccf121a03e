package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
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

// windows watches one of several processes that has linkerd's tap alone, which has
// a limit and no rate. A window is one call of Observe for up to each requests.
// The next window begins when the last request of this one has ended, or
// windowTail after each of them began, and not before every is over.
type windows struct {
	observe func(ctx context.Context, limit uint32) iter.Seq2[Event, error]
	each    uint32
	every   time.Duration
	left    uint64         // requests in all
	lost    func(StreamID) // is called for requests whose end will not come; may be nil
}

// plain watches a process that has linkerd's tap alone.
func (o *followOptions) plain(
	ctx context.Context, conn grpc.ClientConnInterface, of int, req *tappb.WatchRequest,
) iter.Seq2[Event, error] {
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
		w := o.windows(conn, of, req.GetMatch(), req.GetFields())
		if req.GetLimit() > 0 {
			w.left = req.GetLimit()
		}
		if most := req.GetMaxRps(); most > 0 {
			w.each = min(w.each, most)
		}
		w.all(ctx)(yield)
	}
}

// beyondLinkerd names what linkerd's tap does not have and what must not be
// ignored, because more would be shown than was asked for.
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
	return refuse(codes.InvalidArgument, fmt.Errorf("this process has linkerd's tap only, which has no %s", what))
}

func (o *followOptions) windows(conn grpc.ClientConnInterface, of int, m *pb.ObserveRequest_Match, fields bool) *windows {
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
	w := &windows{observe: observe, left: math.MaxUint64}
	w.each, w.every = o.share(of)
	return w
}

// all yields the events of all windows, until the first error or until nothing is
// left.
func (w *windows) all(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for w.left > 0 && ctx.Err() == nil {
			begun := time.Now()
			if !w.one(ctx, yield) {
				return
			}
			if w.left > 0 {
				_ = backoff.Sleep(ctx, time.Until(begun.Add(w.every)))
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
	limit := uint32(min(uint64(w.each), w.left))
	running := map[StreamID]bool{}
	defer func() {
		for id := range running {
			if w.lost != nil {
				w.lost(id)
			}
		}
	}()
	for e, err := range w.observe(ctx, limit) {
		switch {
		case err != nil && ctx.Err() != nil:
			return true // full, or the end of the duration
		case status.Code(err) == codes.Unimplemented:
			err = fmt.Errorf("%w: %w", errNoTap, err)
		case e.RequestInit != nil && limit > 0:
			running[e.ID] = true
			w.left--
			if limit--; limit == 0 {
				defer time.AfterFunc(windowTail, cancel).Stop()
			}
		}
		if !yield(e, err) || err != nil {
			return false
		}
		if e.ResponseEnd != nil {
			delete(running, e.ID)
		}
	}
	return true
}
