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

// Watch yields the events about this process's requests that match req. It ends when ctx ends, when
// req's duration is over, or when as many requests as its limit have ended.
//
//	for e, err := range reg.Watch(ctx, &tappb.WatchRequest{Response: &tappb.ResponseMatch{Failures: true}}) {
//
// Each range over the sequence adds a watcher. An error is the last item: the cause of ctx, or a
// rejection with a gRPC status. An event with Dropped reports how many events did not fit into the
// buffer. A request that is not shown at all counts as one.
//
// tap.proto documents req's fields. Each attempt counts as a request. With a condition on the response,
// a request's events are held until the request ends. A request is dropped if its events do not fit
// into the buffer. The limit counts only requests that match all conditions and are shown, whereas
// linkerd's Observe counts dropped ones as well. Secret values cannot be matched.
//
// Explanations require an [Explain] layer above the [Layer], and bodies [WithBodies] and this package's
// [Accessor].
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

// forEachEvent calls f with each event that matches req. It returns nil when the watch has
// ended or f has returned false.
func (r *Registry) forEachEvent(ctx context.Context, req *tappb.WatchRequest, f func(Event) bool) error {
	t, err := r.terms(req)
	if err != nil {
		return err
	}
	w, err := r.watch(t)
	if err != nil {
		return err
	}
	defer r.close(w)
	err = w.reader(true, func(e Event) error { // with reports of dropped events
		// The reader stops at an error, so this one says that f wants no more events.
		if !f(e) {
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

// Watch yields the events from the process at the other end of conn, see [Registry.Watch]. The
// process must serve gotower's service ([Server.Register]).
func Watch(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.WatchRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "watch", watchEventOf, func(ctx context.Context) (grpc.ServerStreamingClient[tappb.WatchResponse], error) {
		return tappb.NewTapClient(conn).Watch(ctx, req, opts...)
	})
}

// Observe yields the events from the process at the other end of conn. The process must serve linkerd's
// io.linkerd.proxy.tap.Tap.
//
//	for e, err := range tap.Observe(ctx, conn, &pb.ObserveRequest{Limit: 100, Match: match.PathPrefix("/api/")}) {
//
// Each range over the sequence is one call of Observe. The sequence ends after Limit requests, or with
// an error, such as ctx's cause, as its last item. Breaking from the range releases the stream. You
// close conn.
func Observe(
	ctx context.Context, conn grpc.ClientConnInterface, req *pb.ObserveRequest, opts ...grpc.CallOption,
) iter.Seq2[Event, error] {
	return stream(ctx, "observe", eventOf, func(ctx context.Context) (grpc.ServerStreamingClient[pb.TapEvent], error) {
		return pb.NewTapClient(conn).Observe(ctx, req, opts...)
	})
}

// stream returns the messages of a streaming call as a sequence, converted by itemOf. Each range over
// it starts a new call. If the call fails, the last item is an error whose text contains name.
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

// receive starts a call and passes each message to each. It returns nil when the stream has ended
// without an error, or when each has returned false.
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

// watcher is one call of Observe or Watch. The methods that count its requests are called in this
// order: enter for a request that matches, then sent or unsent for its first event, and after sent,
// leave when the request has ended. If a request is held back until its outcome is known, that happens
// when its events are sent.
//
// A watcher is full when it has counted as many requests as its limit allows, or when its duration is
// over. It then sees no new requests, and when none is in flight any more, done is closed.
type watcher struct {
	terms
	reg  *Registry
	base uint32

	// buf holds the events to send. It is nil after close, because requests in flight keep
	// the watcher in memory and must not keep its buffer.
	buf atomic.Pointer[buffer]

	rate     *rate.Limiter // maximum rate of requests; nil means no limit
	seen     atomic.Uint64 // number of requests that count toward the limit
	inFlight atomic.Int64  // number of requests that entered and have not left
	dropped  atomic.Uint64 // number of events that did not fit
	expired  atomic.Bool   // whether the duration is over

	mu      sync.Mutex // guards the writes of seen, and the following fields
	streams uint64     // number of requests that entered
	pending uint64     // number of those whose first event is being sent

	dropSignal chan struct{} // has an item when dropped has increased
	filled     chan struct{} // closed when the number of requests reaches the limit
	done       chan struct{}
	doneOnce   sync.Once
}

// newWatcher returns a watcher with the given terms, which does not watch yet.
func newWatcher(r *Registry, t terms) *watcher {
	w := &watcher{
		terms: t, reg: r, base: r.nextBase,
		dropSignal: make(chan struct{}, 1), filled: make(chan struct{}), done: make(chan struct{}),
	}
	if t.maxRPS > 0 {
		// The requests of one second may come all at once.
		w.rate = rate.NewLimiter(rate.Limit(t.maxRPS), int(t.maxRPS))
	}
	w.buf.Store(newBuffer(orDefault(r.maxEvents, defaultMaxEvents)))
	return w
}

// full reports whether the watcher has reached its limit or duration.
func (w *watcher) full() bool { return w.seen.Load() >= w.limit || w.expired.Load() }

// rateLimited reports whether the maximum rate of requests allows no request now.
func (w *watcher) rateLimited() bool { return w.rate != nil && w.rate.Tokens() < 1 }

// admits reports whether the watcher may see a new request, before its condition is checked, which
// costs more: it is not full, its rate allows another request, and the request is in its sample.
func (w *watcher) admits(d *draw) bool {
	return !w.full() && !w.rateLimited() && (w.sample == 0 || d.value() < w.sample)
}

// draw is a random number for one request, with which watchers compare their sample. It is drawn once,
// so that watchers with the same sample see the same requests, and only if a watcher has a sample.
type draw struct {
	reg   *Registry
	drawn bool    // whether n is set
	n     float64 // from 0 to below 1
}

// value returns the request's random number, which is drawn once, so that all watchers decide by the
// same one.
func (d *draw) value() float64 {
	if !d.drawn {
		d.drawn = true
		if d.n = rand.Float64(); d.reg.random != nil {
			d.n = d.reg.random()
		}
	}
	return d.n
}

// bufferFull reports whether the RequestInit would not fit into the buffer, so that it need not be
// made. A watcher with a condition on the outcome needs no room for it yet.
func (w *watcher) bufferFull() bool {
	b := w.buf.Load()
	return w.outcome == nil && b != nil && len(b.events) == cap(b.events)
}

// dropRequest counts a request that the watcher does not see because its buffer is full.
func (w *watcher) dropRequest() {
	if _, ok := w.enter(); ok {
		w.countDrop()
		w.unsent()
	}
}

// enter admits a new request and returns its number, counted from 0. ok is false if the limit or the
// rate does not allow it. After true, the caller must call sent or unsent.
func (w *watcher) enter() (stream uint64, ok bool) {
	if w.rate != nil && !w.rate.Allow() {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Requests whose first event is being sent may still count.
	if w.limit-w.seen.Load() <= w.pending {
		return 0, false
	}
	w.inFlight.Add(1)
	w.pending++
	w.streams++
	return w.streams - 1, true
}

// sent counts a request of which the first event was sent.
func (w *watcher) sent() { w.count(true) } // it counts toward the limit

// unsent ends a request whose first event could not be sent. For linkerd's Observe, it counts toward
// the limit all the same.
func (w *watcher) unsent() {
	w.count(!w.countsSent)
	w.leave()
}

// count ends the sending of a first event. If counts is true, the request counts toward the limit.
func (w *watcher) count(counts bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending--
	if counts && w.seen.Add(1) == w.limit {
		close(w.filled)
	}
}

// leave counts the end of a request that enter has admitted. If the watcher is full and no request is
// in flight, the watch is done. inFlight is read twice, because another request may have entered before
// the watcher became full.
func (w *watcher) leave() {
	if w.inFlight.Add(-1) == 0 && w.full() && w.inFlight.Load() == 0 {
		w.doneOnce.Do(func() { close(w.done) })
	}
}

// send adds e to the buffer without waiting. It returns false if e does not fit, or if the
// watcher has been closed.
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

// countDrop counts an event that did not fit, and notifies the reader, which reports the
// number.
func (w *watcher) countDrop() {
	w.dropped.Add(1)
	select {
	case w.dropSignal <- struct{}{}:
	default: // there is a signal already
	}
}

// describe returns w's node. The attribute held is present only if w has a condition on the outcome,
// for which it holds events until their request has ended.
func (w *watcher) describe() layer.Node {
	s := layer.State{
		{Key: "base", Value: w.base},
		{Key: "seen", Value: w.seen.Load()},
		{Key: "limit", Value: w.limit},
		{Key: "in_flight", Value: w.inFlight.Load()},
		{Key: "dropped", Value: w.dropped.Load()},
	}
	if w.limit == unlimited {
		s[2].Value = "none" // the attribute limit
	}
	if b := w.buf.Load(); b != nil && w.outcome != nil {
		s = append(s, layer.Attr{Key: "held", Value: b.held.Load()})
	}
	return layer.Node{Name: "watcher", State: s}
}
