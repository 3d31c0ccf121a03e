package layer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Queue lets requests that inner rejects wait in FIFO order until inner is ready. It is the
// only layer in which requests wait.
//
// Admission: up to capacity requests wait, each for up to maxWait. Only the first of them waits in
// inner's Ready, so that one free slot wakes one request. The queue enters fail-fast if inner was
// not ready for maxWait while requests waited. In fail-fast all waiting requests fail, and new ones
// are rejected, until inner is ready. Ready waits until inner is ready or the queue has a free
// place. Place a [RateLimitBy] or a [Router] above the Queue, because their Ready may return nil
// although they reject the waiting request.
//
// Cancellation: a request leaves the queue when its context ends.
//
// Body: not touched.
//
// Errors: a request that waited too long gets an [Error] of kind [ErrFailFast]. A new request
// is rejected with kind [ErrNotReady] if the queue is full or in fail-fast. [ErrClosed] of
// inner is returned at once.
//
// Cost: two atomic loads while the queue is empty. With capacity 0 the layer does nothing. With
// maxWait 0 only the context limits the wait.
func Queue[Req, Rsp any](capacity int, maxWait time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Queue: capacity", capacity, 0)
	checkAtLeast("Queue: maxWait", maxWait, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if capacity == 0 {
			return next
		}
		o.to.QueueLength.Add(0)
		return &queue[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			maxWait:  maxWait,
			waiters:  waiters{capacity: int64(capacity), gauge: o.to.QueueLength},
			waitTime: o.to.QueueWait,
			rejected: tally{to: o.to.LayerRejections.With("layer", "queue")},
		}
	}
}

// queueAttempts is the largest number of times that the queue sends one request to inner.
// After Ready of inner has returned, inner may still reject the request, because a new
// request was faster.
const queueAttempts = 11

type queue[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	maxWait  time.Duration
	waiters  waiters
	waitTime metrics.Histogram
	rejected tally
	failFast atomic.Pointer[time.Time] // the start of fail-fast; nil unless the queue is in fail-fast
}

func (q *queue[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		err := Poll(q.Service)
		switch {
		case err == nil, errors.Is(err, ErrClosed):
			return err
		case q.failFast.Load() != nil:
			return q.Service.Ready(ctx)
		case q.waiters.haveRoom():
			return nil
		}
		changed := func() bool { return q.failFast.Load() != nil || q.waiters.haveRoom() }
		if err := q.waiters.left.Wait(ctx, changed); err != nil {
			return err
		}
	}
}

func (q *queue[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, rejectDone(ctx, "queue", q.target)
	}
	if since := q.failFast.Load(); since != nil {
		rsp, err := q.Service.Call(ctx, req)
		switch {
		case err == nil || !errors.Is(err, ErrNotReady):
			q.failFast.CompareAndSwap(since, nil)
		case isWaitable(err):
			return zero, q.rejectFailFast(*since, err)
		}
		return rsp, err
	}
	if q.waiters.length.Load() == 0 {
		rsp, err := q.Service.Call(ctx, req)
		if err == nil || !isWaitable(err) {
			return rsp, err
		}
		q.waiters.setRejection(err)
	}
	return q.wait(ctx, req)
}

// isWaitable reports whether a request for which inner returned err should wait in the
// queue. This is true for a rejection, unless it matches [ErrClosed] or [ErrFailFast].
func isWaitable(err error) bool {
	return errors.Is(err, ErrNotReady) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFailFast)
}

func (q *queue[Req, Rsp]) wait(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	w := &waiter{since: time.Now(), turn: make(chan struct{}, 1)}
	defer q.waiters.leave(w) // a gauge may panic
	if !q.waiters.join(w) {
		q.rejected.inc()
		return zero, &Error{
			Layer: "queue", Target: q.target, Kind: errShed,
			Reason: fmt.Sprintf("full, %d are waiting", q.waiters.capacity), Err: q.waiters.rejection(),
		}
	}
	for n := 1; ; n++ {
		late, err := q.awaitReady(ctx, w)
		q.waitTime.Observe(milliseconds(time.Since(w.since)))
		if err != nil {
			return zero, err
		}
		rsp, err := q.Service.Call(ctx, req)
		switch {
		case err == nil || !isWaitable(err):
			return rsp, err
		case late:
			return zero, q.timeout(w, err)
		case n == queueAttempts:
			return zero, err
		}
		q.waiters.setRejection(err)
		q.waiters.rejoin(w)
	}
}

// awaitReady waits until w is at the front of the queue, and then until inner is ready.
// When it returns, w has left the queue.
//
// The result late is true in two cases: w has waited for maxWait, or inner was not ready for
// maxWait while requests waited. The caller then sends the request once more, to get a rejection
// with the current reason. Only the request at the front needs a timer, because the others arrived
// later and time out later.
func (q *queue[Req, Rsp]) awaitReady(ctx context.Context, w *waiter) (late bool, err error) {
	defer q.waiters.leave(w)
	select {
	case <-w.turn:
	case <-ctx.Done():
		return false, q.canceled(ctx, w)
	}
	until := ctx
	if q.maxWait > 0 {
		since := q.waiters.unreadySince()
		if w.since.Before(since) {
			since = w.since
		}
		var cancel context.CancelFunc
		until, cancel = context.WithDeadline(ctx, since.Add(q.maxWait))
		defer cancel()
	}
	err = q.Service.Ready(until)
	switch {
	case err == nil:
		q.waiters.setReady()
		return false, nil
	case ctx.Err() != nil:
		return false, q.canceled(ctx, w)
	case until.Err() != nil:
		return true, nil
	}
	return false, err
}

// timeout returns the error of the request w after awaitReady has returned true as the result late.
// The argument cause is the rejection by inner. If inner was not ready for maxWait, timeout starts
// fail-fast. Then each other waiting request times out when it gets to the front of the queue.
func (q *queue[Req, Rsp]) timeout(w *waiter, cause error) error {
	if time.Since(q.waiters.unreadySince()) >= q.maxWait {
		q.waiters.setRejection(cause)
		q.failFast.Store(new(time.Now()))
	}
	q.rejected.inc()
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrFailFast,
		Reason: fmt.Sprintf("not ready within %v", q.maxWait), Waited: time.Since(w.since), Err: cause,
	}
}

func (q *queue[Req, Rsp]) canceled(ctx context.Context, w *waiter) error {
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrNotReady,
		Reason: fmt.Sprintf("%s; it waited for %v", ctxreason.Text(ctx), q.waiters.rejection()),
		Waited: time.Since(w.since), Err: context.Cause(ctx),
	}
}

func (q *queue[Req, Rsp]) rejectFailFast(since time.Time, err error) error {
	q.rejected.inc()
	q.waiters.setRejection(err)
	return &Error{
		Layer: "queue", Target: q.target, Kind: errShed,
		Reason: fmt.Sprintf("in fail-fast for %v", time.Since(since).Round(time.Millisecond)), Err: err,
	}
}

func (q *queue[Req, Rsp]) Describe() Node {
	n := q.waiters.length.Load()
	state := State{{"waiting", n}, {"capacity", q.waiters.capacity}, {"max_wait", q.maxWait}}
	if n := q.rejected.n.Load(); n > 0 {
		state = append(state, Attr{"rejected", n})
	}
	if since := q.failFast.Load(); since != nil {
		state = append(state,
			Attr{"fail_fast_for", time.Since(*since).Round(time.Millisecond)}, Attr{"waits_for", q.waiters.rejection().Error()})
	} else if n > 0 {
		state = append(state, Attr{"not_ready_for", time.Since(q.waiters.unreadySince()).Round(time.Millisecond)})
	}
	return Node{Name: "queue", State: state}
}

// waiter is one request that waits in a queue.
type waiter struct {
	since time.Time
	turn  chan struct{} // receives a value when the waiter becomes the head

	// number is the position of the waiter in the order of arrival, and element is its
	// position in the list. The mutex of waiters guards both.
	number  int64
	element *list.Element // nil while the waiter is not in the list
}

// waiters is the list of the requests that wait in a queue. Only the head, which is the
// first request, waits for inner.
type waiters struct {
	capacity int64
	length   atomic.Int64 // the length of list, for readers without the mutex
	gauge    metrics.Gauge
	left     notify.Broadcast // wakes Ready when a waiter has left the list

	mu      sync.Mutex
	list    list.List // of *waiter, in the order of number
	next    int64     // the number of the next waiter
	head    *waiter   // the waiter that waits for inner; nil if none waits for inner
	unready time.Time // the time when inner was last ready, or when the list became non-empty, if that is later
	last    error     // the last rejection of inner
}

func (l *waiters) haveRoom() bool { return l.length.Load() < l.capacity }

// join appends w to the list of waiting requests and returns true. If the list is full, it
// returns false.
func (l *waiters) join(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.haveRoom() {
		return false
	}
	w.number = l.next
	l.next++
	l.insert(w, nil)
	return true
}

// rejoin inserts w into the list again, at its former position, because inner rejected its
// request. This position is near the front, because w was the head.
func (l *waiters) rejoin(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.list.Front()
	for next != nil && next.Value.(*waiter).number < w.number {
		next = next.Next()
	}
	l.insert(w, next)
}

// insert adds w to the list before the element next, or at the end if next is nil.
func (l *waiters) insert(w *waiter, next *list.Element) {
	if l.list.Len() == 0 {
		l.unready = time.Now()
	}
	if next == nil {
		w.element = l.list.PushBack(w)
	} else {
		w.element = l.list.InsertBefore(w, next)
	}
	l.update()
}

// leave removes w from the list. If w was the head, the next waiter becomes the head.
func (l *waiters) leave(w *waiter) {
	defer l.left.Wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.element != nil {
		l.list.Remove(w.element)
		w.element = nil
	}
	if l.head == w {
		l.head = nil
	}
	l.update()
}

// update makes the first waiter the head if the list has no head. It also stores the length of the
// list in the field length, and updates the gauge. It must be called with mu held after each change
// of the list.
func (l *waiters) update() {
	n := int64(l.list.Len())
	old := l.length.Swap(n)
	if n > 0 && l.head == nil {
		l.head = l.list.Front().Value.(*waiter)
		l.head.turn <- struct{}{}
	}
	if n != old {
		l.gauge.Add(float64(n - old)) // several queues may share the gauge
	}
}

func (l *waiters) setReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unready = time.Now()
}

func (l *waiters) unreadySince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unready
}

func (l *waiters) setRejection(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

func (l *waiters) rejection() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
