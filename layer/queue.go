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

// Queue lets requests that inner rejects wait until inner is ready. It is the only layer in which
// requests wait. It normally sends the oldest request first. Once a request has waited in vain (its
// context ended, or it waited for maxWait), and until the queue is empty, the newest is sent first,
// because under overload the callers of the oldest are about to give up.
//
// Admission: up to capacity requests wait, each for up to maxWait. Only one of them waits in inner's
// Ready, so that one free slot wakes one request. If inner was not ready for maxWait while requests
// waited, the queue enters fail-fast: until inner is ready, waiting and new requests fail. Ready waits
// until inner is ready or the queue has a free place. Place a [RateLimitBy] or a [Router] above the
// Queue, because their Ready may return nil although they reject the waiting request.
//
// Cancellation: a request leaves the queue when its context ends.
//
// Body: not touched.
//
// Errors: a request that waited too long gets an [Error] of kind [ErrFailFast]. A new request is rejected
// with kind [ErrNotReady] if the queue is full or in fail-fast. [ErrClosed] of inner ends the wait.
//
// Cost: two atomic loads while the queue is empty, and a timer for each waiting request. With
// capacity 0 the layer does nothing. With maxWait 0 only the context limits the wait.
func Queue[Req, Rsp any](capacity int, maxWait time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Queue: capacity", capacity, 0)
	checkAtLeast("Queue: maxWait", maxWait, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if capacity == 0 {
			return next
		}
		o.instruments.QueueLength.Add(0)
		return &queue[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			maxWait:  maxWait,
			waiters:  waiters{capacity: int64(capacity), gauge: o.instruments.QueueLength},
			waitTime: o.instruments.QueueWait,
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "queue")},
		}
	}
}

// Queue adds a [Queue] layer, in which up to capacity rejected requests wait, each for up to
// maxWait.
func (s Stack[Req, Rsp]) Queue(capacity int, maxWait time.Duration) Stack[Req, Rsp] {
	return s.With("queue", Queue[Req](capacity, maxWait, s.opts...))
}

// queueAttempts is how often the queue sends a request to inner at most. Even after inner's Ready
// has returned, inner may still reject it, because a new request was faster.
const queueAttempts = 11

// queue is the service of [Queue].
type queue[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	maxWait  time.Duration
	waiters  waiters
	waitTime metrics.Histogram
	rejected tally
	failFast atomic.Pointer[time.Time] // the start of fail-fast; nil unless the queue is in fail-fast
}

// Ready waits until a request would be sent or could wait: until the service below is ready, or there
// is room in the queue.
func (q *queue[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		err := Poll(q.Service)
		// A closed service will never be ready, so there is nothing to wait for.
		switch {
		case err == nil, errors.Is(err, ErrClosed):
			return err
		// In fail-fast no request may wait, so the room in the queue does not matter.
		case q.failFast.Load() != nil:
			return q.Service.Ready(ctx)
		case q.waiters.haveRoom():
			return nil
		}
		changed := func() bool { return q.failFast.Load() != nil || q.waiters.haveRoom() }
		if err := q.waiters.departures.Wait(ctx, changed); err != nil {
			return err
		}
	}
}

// Call sends req, or lets it wait in the queue until the service below is ready.
func (q *queue[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, rejectDone(ctx, "queue", q.target)
	}
	// In fail-fast, requests do not wait, but each is still sent to find out whether inner is ready
	// again.
	if start := q.failFast.Load(); start != nil {
		rsp, err := q.Service.Call(ctx, req)
		switch {
		case err == nil || !errors.Is(err, ErrNotReady):
			// inner has admitted a request, so fail-fast ends. Another goroutine may have ended it and started a new
			// one.
			q.failFast.CompareAndSwap(start, nil)
		case isWaitable(err):
			return zero, q.rejectFailFast(*start, err)
		}
		return rsp, err
	}
	if q.waiters.length.Load() == 0 { // with other requests waiting, a new one must not overtake them
		rsp, err := q.Service.Call(ctx, req)
		if err == nil || !isWaitable(err) {
			return rsp, err
		}
		// Callers that wait are told the last rejection as the reason.
		q.waiters.setRejection(err)
	}
	return q.wait(ctx, req)
}

// isWaitable reports whether a request should wait in the queue after inner has returned err. That is
// so for a rejection, unless waiting is useless ([ErrClosed]) or forbidden ([ErrFailFast]).
func isWaitable(err error) bool {
	return errors.Is(err, ErrNotReady) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFailFast)
}

// wait lets the request wait in the queue until inner is ready, and sends it. If inner still rejects
// it, because another request was faster, it waits again at its old place, until it was sent
// queueAttempts times. A request that has waited too long is sent once more: see awaitReady.
func (q *queue[Req, Rsp]) wait(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	w := &waiter{start: time.Now(), turn: make(chan struct{}, 1)}
	defer q.waiters.leave(w) // a gauge may panic
	if !q.waiters.join(w) {
		q.rejected.inc()
		return zero, &Error{
			Layer: "queue", Target: q.target, Kind: errShed,
			Reason: fmt.Sprintf("full, %d are waiting", q.waiters.capacity), Err: q.waiters.rejection(),
		}
	}
	if q.maxWait > 0 {
		timer := time.NewTimer(q.maxWait)
		defer timer.Stop()
		// Without a limit, w.expired stays nil, and receiving from it blocks forever.
		w.expired = timer.C
	}
	for n := 1; ; n++ {
		timedOut, err := q.awaitReady(ctx, w)
		q.waitTime.Observe(milliseconds(time.Since(w.start)))
		if err != nil {
			return zero, err
		}
		rsp, err := q.Service.Call(ctx, req)
		// w has left the queue here, so another waiter may have become the head.
		// The request has waited too long, even if inner has admitted it now: see Queue.
		if timedOut || reqctx.Ended(ctx) {
			q.waiters.setInVain()
		}
		switch {
		case err == nil || !isWaitable(err):
			return rsp, err
		case timedOut:
			return zero, q.timeout(w, err)
		case n == queueAttempts:
			return zero, err
		}
		q.waiters.setRejection(err)
		q.waiters.rejoin(w)
	}
}

// awaitReady waits until w is at the head of the queue, and then until inner is ready. In any case, w
// has left the queue when it returns.
//
// timedOut is true if w has waited for maxWait, or if inner was not ready for maxWait while requests
// waited. The caller then sends the request once more, so that the error names inner's current reason.
func (q *queue[Req, Rsp]) awaitReady(ctx context.Context, w *waiter) (timedOut bool, err error) {
	defer q.waiters.leave(w)
	select {
	case <-w.turn:
	case <-w.expired:
		return true, nil
	case <-ctx.Done():
		q.waiters.setInVain()
		return false, q.canceled(ctx, w)
	}
	waitCtx := ctx
	if q.maxWait > 0 {
		// unreadySince is when inner was last ready, as far as the queue knows.
		start := q.waiters.unreadySince()
		// The earlier of two limits applies: that of w, and that of the time for which inner is not ready.
		if w.start.Before(start) {
			start = w.start
		}
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithDeadline(ctx, start.Add(q.maxWait))
		defer cancel()
	}
	err = q.Service.Ready(waitCtx)
	switch {
	// The order matters: a request whose caller has gone is canceled, even if the limit has passed too.
	case err == nil:
		q.waiters.setReady()
		return false, nil
	case ctx.Err() != nil:
		q.waiters.setInVain()
		return false, q.canceled(ctx, w)
	case waitCtx.Err() != nil:
		return true, nil
	}
	return false, err
}

// timeout returns the error for w, for which awaitReady returned timedOut. cause is inner's rejection.
// If inner was not ready for maxWait, timeout starts fail-fast, in which new requests do not wait;
// those in the queue time out when they become the head.
func (q *queue[Req, Rsp]) timeout(w *waiter, cause error) error {
	// The service has not been ready for the whole maxWait: from now on, requests fail fast.
	if time.Since(q.waiters.unreadySince()) >= q.maxWait {
		q.waiters.setRejection(cause)
		q.failFast.Store(new(time.Now()))
	}
	q.rejected.inc()
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrFailFast,
		Reason: fmt.Sprintf("not ready within %v", q.maxWait), Waited: time.Since(w.start), Err: cause,
	}
}

// canceled returns the error for the request of w, whose context has ended while it waited in the
// queue.
func (q *queue[Req, Rsp]) canceled(ctx context.Context, w *waiter) error {
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrNotReady,
		Reason: fmt.Sprintf("%s; it waited for %v", ctxreason.Text(ctx), q.waiters.rejection()),
		Waited: time.Since(w.start), Err: context.Cause(ctx),
	}
}

// rejectFailFast returns the rejection of a request that arrived in fail-fast, since start. err is
// inner's.
func (q *queue[Req, Rsp]) rejectFailFast(start time.Time, err error) error {
	q.rejected.inc()
	q.waiters.setRejection(err)
	return &Error{
		Layer: "queue", Target: q.target, Kind: errShed,
		Reason: fmt.Sprintf("in fail-fast for %v", time.Since(start).Round(time.Millisecond)), Err: err,
	}
}

// Describe returns the number of waiting requests, the limits, and how long the service below has not
// been ready.
func (q *queue[Req, Rsp]) Describe() Node {
	n := q.waiters.length.Load()
	state := State{{"waiting", n}, {"capacity", q.waiters.capacity}, {"max_wait", q.maxWait}}
	if n := q.rejected.n.Load(); n > 0 {
		state = append(state, Attr{"rejected", n})
	}
	// In fail-fast mode, and otherwise only while requests wait.
	if start := q.failFast.Load(); start != nil {
		state = append(state,
			Attr{"fail_fast_for", time.Since(*start).Round(time.Millisecond)}, Attr{"waits_for", q.waiters.rejection().Error()})
	} else if n > 0 {
		state = append(state, Attr{"not_ready_for", time.Since(q.waiters.unreadySince()).Round(time.Millisecond)})
	}
	return Node{Name: "queue", State: state}
}

// waiter is one request that waits in a queue.
type waiter struct {
	start   time.Time
	turn    chan struct{}    // receives a value when the waiter becomes the head
	expired <-chan time.Time // receives a value after maxWait; nil without a limit

	// number counts waiters in the order of arrival, and element is the waiter's place in the
	// list. The mutex of waiters guards both.
	number  int64
	element *list.Element // nil while the waiter is not in the list
}

// waiters is the list of the requests that wait in a queue. Only one of them, the head, waits for
// inner, so that each free slot of inner wakes one request instead of all.
type waiters struct {
	capacity   int64
	length     atomic.Int64 // the length of list, for readers without the mutex
	gauge      metrics.Gauge
	departures notify.Broadcast // wakes Ready when a waiter has left the list

	mu      sync.Mutex
	list    list.List // of *waiter, in the order of number
	next    int64     // the number of the next waiter
	head    *waiter   // the waiter that waits for inner; nil if none waits for inner
	inVain  bool      // a request has waited in vain since the list was empty, so the newest becomes the head
	unready time.Time // since when inner is not ready: when it was last ready, or the list got non-empty after that
	last    error     // the last rejection of inner
}

// haveRoom reports whether another request may join the list.
func (l *waiters) haveRoom() bool { return l.length.Load() < l.capacity }

// join adds w at the end of the list and returns true, or returns false if the list is full.
func (l *waiters) join(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Checked with the lock held, so that two requests cannot take the last place.
	if !l.haveRoom() {
		return false
	}
	// The number is the waiter's place in the order of arrival.
	w.number = l.next
	l.next++
	l.insert(w, nil)
	return true
}

// rejoin puts w into the list again, at the place of its arrival, because inner has rejected its
// request once more. It may exceed the capacity by that.
func (l *waiters) rejoin(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A waiter that rejoins is usually among the oldest, so the search begins at the front.
	next := l.list.Front()
	for next != nil && next.Value.(*waiter).number < w.number {
		next = next.Next()
	}
	l.insert(w, next)
}

// insert adds w to the list before the element next, or at the end if next is nil.
func (l *waiters) insert(w *waiter, next *list.Element) {
	if l.list.Len() == 0 {
		// The queue was empty, so inner has not been known to be unready until now.
		l.unready = time.Now()
	}
	if next == nil {
		w.element = l.list.PushBack(w)
	} else {
		w.element = l.list.InsertBefore(w, next)
	}
	l.update() // the length, the gauge, and the head if there is none
}

// leave removes w from the list, if it is in it. If w was the head, update chooses another one.
func (l *waiters) leave(w *waiter) {
	// Deferred calls run in reverse order: Wake runs after the lock is released.
	defer l.departures.Wake()
	l.mu.Lock()
	defer l.mu.Unlock()
	// After an earlier call there is no element, and the list stays as it is.
	if w.element != nil {
		l.list.Remove(w.element)
		w.element = nil
	}
	if l.head == w {
		l.head = nil
	}
	l.update()
}

// update must be called with mu held after each change of the list. It keeps length and the gauge up to
// date, and chooses a head if there is none: the oldest waiter, or the newest if a request has waited
// in vain.
func (l *waiters) update() {
	n := int64(l.list.Len())
	old := l.length.Swap(n)
	switch {
	case n == 0:
		l.inVain = false
	case l.head == nil:
		next := l.list.Front()
		if l.inVain {
			next = l.list.Back()
		}
		l.head = next.Value.(*waiter)
		// turn has room for one value, so this never blocks while mu is held.
		l.head.turn <- struct{}{}
	}
	if n != old {
		l.gauge.Add(float64(n - old)) // several queues may share the gauge
	}
}

// setReady records that inner was ready just now.
func (l *waiters) setReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unready = time.Now()
}

// setInVain records that a request has waited in vain, because its time was over or its caller has gone. From
// then on, update makes the newest waiter the head instead of the oldest, until the list is empty.
func (l *waiters) setInVain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inVain = l.list.Len() > 0
}

// unreadySince returns since when inner is not ready, as far as the queue knows: see the field unready.
func (l *waiters) unreadySince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unready
}

// setRejection stores the last rejection of inner, for error texts.
func (l *waiters) setRejection(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

// rejection returns the last rejection of inner, or nil.
func (l *waiters) rejection() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
