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

	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
)

// plain watches a process that has linkerd's tap alone.
func (o *followOptions) plain(
	ctx context.Context, conn grpc.ClientConnInterface, of int, req *tappb.WatchRequest,
) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := sane(req); err != nil {
			yield(Event{}, refuse(codes.InvalidArgument, err))
			return
		}
		if what := beyondLinkerd(req); what != "" {
			yield(Event{}, refuse(codes.InvalidArgument, fmt.Errorf("this process has linkerd's tap only, which has no %s", what)))
			return
		}
		if req.GetDuration() != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx) // and no deadline, see detached
			defer cancel()
			defer time.AfterFunc(req.GetDuration().AsDuration(), cancel).Stop()
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

// beyondLinkerd names what linkerd's tap cannot do and what must not be left
// out: more would be seen than was asked for.
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

// windows watches one of so many processes by Observe.
func (o *followOptions) windows(
	conn grpc.ClientConnInterface, of int, m *pb.ObserveRequest_Match, fields bool,
) *paced {
	if m.GetMatch() == nil {
		m = match.All()
	}
	observe := func(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
		req := &pb.ObserveRequest{Limit: limit, Match: m}
		if fields {
			req.Extract = match.Headers()
		}
		return orNeither(Observe(ctx, conn, req))
	}
	w := &paced{observe: observe, left: math.MaxUint64}
	w.each, w.every = o.share(of)
	return w
}

var errNoTap = errors.New("it serves neither gotower's tap nor linkerd's")

// orNeither says what it means that linkerd's service is missing, too.
func orNeither(events iter.Seq2[Event, error]) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for e, err := range events {
			if status.Code(err) == codes.Unimplemented {
				err = fmt.Errorf("%w: %w", errNoTap, err)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
