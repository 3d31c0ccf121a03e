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

// Watch yields the requests of this process that match req, until ctx ends or the
// duration or limit of req is reached.
//
//	for e, err := range reg.Watch(ctx, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}) {
//
// Each range over the sequence adds a watcher. An error is the last item: the cause of ctx, or a
// rejection with a gRPC status. The number of events that did not fit into the buffer is reported
// by an event with Dropped. A request whose first event does not fit counts once.
//
// tap.proto documents the fields of req. Each attempt is a request of its own. With a condition on
// the response, requests are held until they end, and dropped if they do not fit into the buffer.
// The limit counts matching requests only. Secret values cannot be matched.
//
// An Explanation requires the layer [Explain] above. Bodies require [WithBodies] and an
// [Accessor] of this package.
func (r *Registry) Watch(ctx context.Context, req *tappb.WatchRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := r.forEachEvent(ctx, req, func(e Event) bool { return yield(e, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(Event{}, fmt.Errorf("tap: watch: %w", context.Cause(ctx)))
		default:
			yield(Event{}, err)
		}
	}
}

// forEachEvent calls seen with each event. It returns nil when the watch ends or seen
// returns false.
func (r *Registry) forEachEvent(ctx context.Context, req *tappb.WatchRequest, seen func(Event) bool) error {
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

// Watch yields the requests of the process at the other end of conn, which must serve
// gotower's service, see [Registry.Watch] and [Server.Register].
func Watch(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "watch", watchEventOf, func(ctx context.Context) (grpc.ServerStreamingClient[tappb.WatchResponse], error) {
		return tappb.NewTapClient(conn).Watch(ctx, req, opts...)
	})
}

// Observe yields the requests of the process at the other end of conn, which must serve
// linkerd's io.linkerd.proxy.tap.Tap.
//
//	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 100, Match: match.PathPrefix("/api/")}) {
//
// Each range over the sequence is one call of Observe. It ends after Limit requests, or
// with an error, such as the cause of ctx, as its last item. Breaking from the range
// releases the stream. The caller closes conn.
func Observe(
	ctx context.Context, conn grpc.ClientConnInterface, req *pb.ObserveRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "observe", eventOf, func(ctx context.Context) (grpc.ServerStreamingClient[pb.TapEvent], error) {
		return pb.NewTapClient(conn).Observe(ctx, req, opts...)
	})
}

// stream yields the converted items of a streaming call. Each range calls again.
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

// receive calls each with each message. It returns nil at the end of the stream, and
// when each returns false.
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
// A request that matches enters, and leaves when it ends. After limit requests, or
// after the duration, no more enter, and the watcher is full. When a full watcher has
// no request in flight, done is closed.
type watcher struct {
	terms
	reg  *Registry
	base uint32

	// buf is nil after close, because requests in flight keep the watcher in memory and
	// must not keep its buffer.
	buf atomic.Pointer[buffer]

	rate     *rate.Limiter // of requests; nil: no limit
	seen     atomic.Uint64 // number of requests that matched
	inFlight atomic.Int64  // number of requests that entered and have not left
	dropped  atomic.Uint64 // number of events that did not fit
	expired  atomic.Bool   // the duration is over

	dropSignal chan struct{} // has an item when dropped has increased
	filled     chan struct{} // closed when the last request entered
	done       chan struct{}
	doneOnce   sync.Once
}

func newWatcher(r *Registry, t terms) *watcher {
	w := &watcher{
		terms: t, reg: r, base: r.nextBase,
		dropSignal: make(chan struct{}, 1), filled: make(chan struct{}), done: make(chan struct{}),
	}
	if t.maxRPS > 0 {
		w.rate = rate.NewLimiter(rate.Limit(t.maxRPS), int(t.maxRPS))
	}
	w.buf.Store(newBuffer(orDefault(r.maxEvents, defaultMaxEvents)))
	return w
}

// full reports whether the limit or the end of the duration has been reached.
func (w *watcher) full() bool { return w.seen.Load() >= w.limit || w.expired.Load() }

// rateLimited reports whether the rate allows no request now.
func (w *watcher) rateLimited() bool { return w.rate != nil && w.rate.Tokens() < 1 }

// admits reports whether the watcher accepts a request now, before its condition.
func (w *watcher) admits(d *draw) bool {
	return !w.full() && !w.rateLimited() && (w.sample == 0 || d.value() < w.sample)
}

// draw is a random number from 0 to 1 for one request. All watchers use the same one,
// so that watchers with the same sample see the same requests.
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

// bufferFull reports whether the buffer has no room for a first event.
func (w *watcher) bufferFull() bool {
	b := w.buf.Load()
	return w.outcome == nil && b != nil && len(b.events) == cap(b.events)
}

// dropRequest counts a request whose first event does not fit.
func (w *watcher) dropRequest() {
	if _, ok := w.enter(); ok {
		w.countDrop()
		w.leave()
	}
}

// enter returns the number of a new request. ok is false if the limit or the rate is
// reached. Each request that entered must leave.
func (w *watcher) enter() (stream uint64, ok bool) {
	if w.rate != nil && !w.rate.Allow() {
		return 0, false
	}
	// inFlight is increased first, so that leave does not see a full watcher without this request.
	w.inFlight.Add(1)
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

// leave ends a request. It reads inFlight again after full, because the last request
// may enter between the first two conditions.
func (w *watcher) leave() {
	if w.inFlight.Add(-1) == 0 && w.full() && w.inFlight.Load() == 0 {
		w.doneOnce.Do(func() { close(w.done) })
	}
}

// send adds e to the buffer without waiting. It returns false if e does not fit.
func (w *watcher) send(e Event) bool {
	b := w.buf.Load()
	if b == nil {
		return false
	}
	if !b.offer(e) {
		w.countDrop()
		return false
	}
	return true
}

// countDrop counts an event that did not fit, and wakes the reader.
func (w *watcher) countDrop() {
	w.dropped.Add(1)
	select {
	case w.dropSignal <- struct{}{}:
	default: // there is a signal already
	}
}

func (w *watcher) describe() layer.Node {
	s := layer.State{
		{Key: "base", Value: w.base},
		{Key: "seen", Value: min(w.seen.Load(), w.limit)},
		{Key: "limit", Value: w.limit},
		{Key: "in_flight", Value: w.inFlight.Load()},
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
