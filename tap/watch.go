package tap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// Watch yields the requests of this process that match req, until ctx ends or
// the duration or limit of req is reached.
//
//	for e, err := range reg.Watch(ctx, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}) {
//
// Each range over the sequence is one watcher, which begins with the range. An
// error is the last item: the cause of ctx, or a rejection with the gRPC status
// of [Watch]. Events that do not fit into the buffer are counted in an event
// with Dropped. A request whose first event does not fit counts once.
//
// The fields of req are documented in tap.proto. Each attempt is a request, and
// is sampled separately. With a condition on the response, requests are kept
// until they end. The limit counts matching requests only. Requests that do not
// fit into the buffer are dropped. Values of secret fields cannot be matched.
//
// An Explanation needs a layer [Explain] above. Bodies need [WithBodies] and an
// [Accessor] of tap.
func (r *Registry) Watch(ctx context.Context, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := r.each(ctx, req, func(e Event) bool { return yield(e, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(Event{}, fmt.Errorf("tap: watch: %w", context.Cause(ctx)))
		default:
			yield(Event{}, err)
		}
	}
}

// each returns nil at the end of the watch, and if seen returns false.
func (r *Registry) each(ctx context.Context, req *tappb.WatchRequest, seen func(Event) bool) error {
	t, err := r.terms(req)
	if err != nil {
		return err
	}
	w, err := r.watch(t)
	if err != nil {
		return err
	}
	defer r.close(w)
	err = w.reader(true, func(e Event) error {
		if !seen(e) {
			return errEnough
		}
		return nil
	}).run(ctx)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

var errEnough = errors.New("enough")

// Watch shows the requests of the process at the other end of conn, which
// serves gotower's own service, see [Server.Register]. It is to [Registry.Watch]
// as [Observe] is to linkerd's service.
func Watch(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "watch", watchEventOf, func(ctx context.Context) (grpc.ServerStreamingClient[tappb.WatchResponse], error) {
		return tappb.NewTapClient(conn).Watch(ctx, req, opts...)
	})
}

// Observe watches the process at the other end of conn: any that serves
// linkerd's io.linkerd.proxy.tap.Tap.
//
//	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 100, Match: match.PathPrefix("/api/")}) {
//
// One range over the sequence is one call of Observe; ranging again calls
// again. It ends with the stream: after Limit requests, or with an error as
// its last item, the cause of ctx among them. Breaking from the range releases
// the stream. conn stays the caller's.
func Observe(
	ctx context.Context, conn grpc.ClientConnInterface, req *pb.ObserveRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "observe", eventOf, func(ctx context.Context) (grpc.ServerStreamingClient[pb.TapEvent], error) {
		return pb.NewTapClient(conn).Observe(ctx, req, opts...)
	})
}

// stream yields the items of a call, which each range makes anew.
func stream[M, T any](
	ctx context.Context, name string, itemOf func(*M) T,
	call func(context.Context) (grpc.ServerStreamingClient[M], error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		err := receive(calling, call, func(m *M) bool { return yield(itemOf(m), nil) })
		var zero T
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(zero, fmt.Errorf("tap: %s: %w", name, context.Cause(ctx)))
		default:
			yield(zero, fmt.Errorf("tap: %s: %w", name, err))
		}
	}
}

// receive returns nil at the end of the stream, and when each returns false.
func receive[M any](
	ctx context.Context, call func(context.Context) (grpc.ServerStreamingClient[M], error), each func(*M) bool,
) error {
	stream, err := call(ctx)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !each(m):
			return nil
		}
	}
}

// watcher is one call of Observe or Watch.
//
// Requests enter it until limit of them have. Once it is full and all that
// entered have left, it is done: nothing more will be sent.
type watcher struct {
	terms
	reg  *Registry
	base uint32

	// buf is nil after the watcher was closed. Requests in flight may keep a
	// watcher alive, and must not keep its buffer alive.
	buf atomic.Pointer[buffer]

	rate    *rate.Limiter // of requests; nil for no limit
	seen    atomic.Uint64 // requests that matched
	inside  atomic.Int64  // requests that entered and did not leave
	dropped atomic.Uint64 // events that did not fit
	expired atomic.Bool   // its time is over

	lost     chan struct{} // holds one when dropped has grown
	filled   chan struct{} // closed when the last request entered
	done     chan struct{}
	doneOnce sync.Once
}

func newWatcher(r *Registry, t terms) *watcher {
	w := &watcher{
		terms: t, reg: r, base: r.nextBase,
		lost: make(chan struct{}, 1), filled: make(chan struct{}), done: make(chan struct{}),
	}
	if t.maxRPS > 0 {
		w.rate = rate.NewLimiter(rate.Limit(t.maxRPS), int(t.maxRPS))
	}
	w.buf.Store(newBuffer(orDefault(r.maxEvents, defaultMaxEvents)))
	return w
}

// full reports whether the watcher takes no more requests.
func (w *watcher) full() bool { return w.seen.Load() >= w.limit || w.expired.Load() }

// limited reports whether the rate admits no request now.
func (w *watcher) limited() bool { return w.rate != nil && w.rate.Tokens() < 1 }

// admits reports whether the watcher may see one more request now.
func (w *watcher) admits(d *draw) bool {
	return !w.full() && !w.limited() && (w.sample == 0 || d.value() < w.sample)
}

// draw is a random number from 0 to 1, the same for all watchers of a request, so
// that watchers with the same sample see the same requests.
type draw struct {
	reg   *Registry
	drawn bool
	n     float64
}

func (d *draw) value() float64 {
	if !d.drawn {
		d.drawn = true
		if d.n = rand.Float64(); d.reg.random != nil {
			d.n = d.reg.random()
		}
	}
	return d.n
}

// isClogged reports whether the buffer is full.
func (w *watcher) isClogged() bool {
	b := w.buf.Load()
	return w.outcome == nil && b != nil && len(b.events) == cap(b.events)
}

// miss counts a request whose first event does not fit.
func (w *watcher) miss() {
	if _, ok := w.enter(); ok {
		w.lose()
		w.leave()
	}
}

// enter returns the number of a request, unless the limit or the rate is
// reached. Each request that entered must leave.
func (w *watcher) enter() (stream uint64, ok bool) {
	if w.rate != nil && !w.rate.Allow() {
		return 0, false
	}
	// Inside is counted first, so that a caller that sees the watcher full sees
	// every request inside, too.
	w.inside.Add(1)
	n := w.seen.Add(1)
	if n > w.limit {
		w.leave()
		return 0, false
	}
	if n == w.limit {
		close(w.filled)
	}
	return n - 1, true
}

// leave ends a request. Inside is read once more after full, because the last
// request may enter between the first two conditions.
func (w *watcher) leave() {
	if w.inside.Add(-1) == 0 && w.full() && w.inside.Load() == 0 {
		w.doneOnce.Do(func() { close(w.done) })
	}
}

// send never waits. It reports whether e was taken.
func (w *watcher) send(e Event) bool {
	b := w.buf.Load()
	if b == nil {
		return false
	}
	if !b.offer(e) {
		w.lose()
		return false
	}
	return true
}

// lose counts an event that did not fit. A request of which the first does not
// fit is one.
func (w *watcher) lose() {
	w.dropped.Add(1)
	select {
	case w.lost <- struct{}{}:
	default: // the reader has a signal
	}
}

func (w *watcher) describe() layer.Node {
	s := layer.State{
		{Key: "base", Value: w.base},
		{Key: "seen", Value: min(w.seen.Load(), w.limit)},
		{Key: "limit", Value: w.limit},
		{Key: "in_flight", Value: w.inside.Load()},
		{Key: "dropped", Value: w.dropped.Load()},
	}
	if w.limit == unlimited {
		s[2].Value = "none"
	}
	if b := w.buf.Load(); b != nil && w.outcome != nil {
		s = append(s, layer.Attr{Key: "held", Value: b.held.Load()})
	}
	return layer.Node{Name: "watcher", State: s}
}
