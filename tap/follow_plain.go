package tap

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/backoff"
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

// maxTails is how many windows are still read of which the requests are not
// all over. The oldest is given up for another.
const maxTails = 8

// paced watches a process whose tap has a limit and no rate. It does so in
// windows: a window is a call of Observe for up to each requests, and no two
// begin within every. linkerd's own tap waits for the last request of a window;
// here the next begins when the one before is full, and what that still has to
// tell is read beside.
type paced struct {
	observe func(ctx context.Context, limit uint32) iter.Seq2[Event, error]
	each    uint32
	every   time.Duration
	left    uint64         // requests in all
	lost    func(StreamID) // is told of requests whose end will not come; may be nil

	items chan pacedItem
	tails sync.WaitGroup
}

type pacedItem struct {
	Event
	err error
}

// all is the events of all windows. It ends with the first error, or when
// nothing is left.
func (w *paced) all(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		w.items = make(chan pacedItem)
		var opening sync.WaitGroup
		defer opening.Wait()
		defer cancel()
		opening.Go(func() {
			defer close(w.items)
			w.open(ctx)
			w.tails.Wait()
		})
		for i := range w.items {
			if !yield(i.Event, i.err) || i.err != nil {
				return
			}
		}
	}
}

// open opens one window after the other.
func (w *paced) open(ctx context.Context) {
	var cancels []context.CancelFunc
	defer func() {
		w.tails.Wait()
		for _, cancel := range cancels {
			cancel()
		}
	}()
	for w.left > 0 && ctx.Err() == nil {
		if len(cancels) == maxTails {
			cancels[0]()
			cancels = cancels[1:]
		}
		reading, cancel := context.WithCancel(ctx)
		cancels = append(cancels, cancel)
		begun, seen := time.Now(), make(chan uint64, 1)
		limit := uint32(min(uint64(w.each), w.left))
		w.tails.Go(func() { w.read(ctx, reading, limit, seen) })
		w.left -= min(<-seen, w.left)
		if w.left > 0 {
			_ = backoff.Sleep(ctx, time.Until(begun.Add(w.every)))
		}
	}
}

// read reads one window, until it ends or reading does. Seen is sent how many
// requests there were, as soon as there are no more.
func (w *paced) read(ctx, reading context.Context, limit uint32, seen chan<- uint64) {
	running := map[StreamID]bool{}
	var inits uint64
	defer func() {
		for id := range running {
			if w.lost != nil {
				w.lost(id)
			}
		}
		if inits < uint64(limit) {
			seen <- inits
		}
	}()
	for e, err := range w.observe(reading, limit) {
		if err != nil && reading.Err() != nil {
			return
		}
		if e.RequestInit != nil {
			running[e.ID] = true
			if inits++; inits == uint64(limit) {
				seen <- inits
			}
		}
		select {
		case w.items <- pacedItem{e, err}:
		case <-ctx.Done():
			return
		}
		if e.ResponseEnd != nil {
			delete(running, e.ID)
		}
	}
}

// quota is what a process may still show, over all the times that it is asked.
type quota struct {
	req   *tappb.WatchRequest
	left  uint64            // requests, if req has a limit
	until time.Time         // zero is for ever
	open  map[StreamID]bool // connections that are told of twice
}

func newQuota(req *tappb.WatchRequest) *quota {
	if req == nil {
		req = &tappb.WatchRequest{}
	}
	q := &quota{req: req, left: req.GetLimit(), open: map[StreamID]bool{}}
	if d := req.GetDuration(); d != nil {
		q.until = time.Now().Add(d.AsDuration())
		if !d.IsValid() || d.AsDuration() <= 0 {
			q.until = time.Time{} // it will be refused
		}
	}
	return q
}

// count is told of every event.
func (q *quota) count(e Event) {
	switch {
	case q.left == 0:
		return
	case e.Open != nil:
		q.open[e.ID] = true
	case e.Close != nil && q.open[e.ID]:
		delete(q.open, e.ID)
		return
	case e.Close == nil && e.RequestInit == nil:
		return
	}
	q.left--
}

// rest is what to ask for now, nil if that is nothing.
func (q *quota) rest() *tappb.WatchRequest {
	left := time.Until(q.until)
	if q.req.GetLimit() > 0 && q.left == 0 || !q.until.IsZero() && left <= 0 {
		return nil
	}
	clear(q.open)
	req := proto.CloneOf(q.req)
	req.Limit = q.left
	if !q.until.IsZero() {
		req.Duration = durationpb.New(left)
	}
	return req
}
