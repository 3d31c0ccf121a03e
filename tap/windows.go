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

// windowTail is how long a window stays open after its last request has begun, so that its
// requests can end. A window is a call of Observe, see windows.
const windowTail = 10 * time.Second

// windows watches a process that serves only linkerd's tap. That service cannot limit how many requests
// it shows per second, so windows calls Observe again and again. Each call, called a window, shows
// perWindow requests. Windows begin at least a second apart, and end when their requests have ended, or
// windowTail after the last of them began.
type windows struct {
	observe   func(ctx context.Context, limit uint32) iter.Seq2[Event, error]
	perWindow uint32
	remaining uint64 // number of requests that may still be shown
}

// watchLinkerd watches a process that serves only linkerd's tap, and yields its events. If
// linkerd's tap does not support a condition of req, it yields an error.
func watchLinkerd(ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if what := beyondLinkerd(req); what != "" {
			yield(Event{}, errBeyondLinkerd(what))
			return
		}
		if d := req.GetDuration(); d != nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx) // without a deadline, see withoutDeadline
			defer cancel()
			defer time.AfterFunc(d.AsDuration(), cancel).Stop()
		}
		w := &windows{
			observe:   observer(conn, req.GetMatch(), req.GetFields()),
			perWindow: cmp.Or(req.GetMaxRps(), 100), remaining: cmp.Or(req.GetLimit(), unlimited),
		}
		w.all(ctx)(yield)
	}
}

// beyondLinkerd returns which part of req linkerd's tap does not support, as words for an error, or "".
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

// errBeyondLinkerd returns a rejection of a request for what, which linkerd's tap does not offer.
func errBeyondLinkerd(what string) error {
	return reject(codes.InvalidArgument, fmt.Errorf("this process has linkerd's tap only, which has no %s", what))
}

// observer returns a function that calls Observe of linkerd's tap for up to limit requests that match
// m.
func observer(
	conn grpc.ClientConnInterface, m *pb.ObserveRequest_Match, fields bool,
) func(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
	// Observe needs a condition, and All without operands is always true.
	if m.GetMatch() == nil {
		m = match.All()
	}
	return func(ctx context.Context, limit uint32) iter.Seq2[Event, error] {
		req := &pb.ObserveRequest{Limit: limit, Match: m}
		if fields {
			req.Extract = match.Headers()
		}
		return Observe(ctx, conn, req)
	}
}

// all yields the events of one window after the other, until w.remaining is 0, ctx ends or an error
// occurs.
func (w *windows) all(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for w.remaining > 0 && ctx.Err() == nil {
			next := time.Now().Add(time.Second)
			if !w.observeWindow(ctx, yield) {
				return
			}
			if w.remaining > 0 {
				_ = backoff.Sleep(ctx, time.Until(next))
			}
		}
	}
}

var errNoTap = errors.New("it serves neither gotower's tap nor linkerd's")

// observeWindow yields one window's events. It returns true if another window may follow. It
// returns false after an error, or when yield has returned false.
func (w *windows) observeWindow(ctx context.Context, yield func(Event, error) bool) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := uint32(min(uint64(w.perWindow), w.remaining))
	for e, err := range w.observe(ctx, limit) {
		switch {
		case err != nil && ctx.Err() != nil:
			return true // windowTail or the duration is over
		case status.Code(err) == codes.Unimplemented:
			err = fmt.Errorf("%w: %w", errNoTap, err)
		case e.RequestInit != nil && limit > 0:
			w.remaining--
			if limit--; limit == 0 {
				defer time.AfterFunc(windowTail, cancel).Stop() //nolint:gocritic // once, because limit is 0
			}
		}
		if !yield(e, err) || err != nil {
			return false
		}
	}
	return true
}
