package layer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/left"
)

// Queue is the only layer that waits. Requests that inner rejects wait in FIFO
// order until inner is ready.
//
// Admission: up to capacity requests wait, each for up to maxWait. Only the
// head waits in inner's Ready, so one free slot wakes one waiter. If inner has
// not been ready for maxWait while requests waited, the queue enters fail-fast:
// all waiting requests fail, and new ones are rejected until inner is ready.
// Time with an empty queue does not count. Ready waits for room in the queue.
//
// Inner may reject a request although it is ready: a [LimitBy], a [RateLimitBy]
// or an [If] below whose key has no room. After several rejections such a
// request is parked: it keeps its position, retries about every 50 ms and does
// not block the others. If it is parked until its maxWait, it fails alone.
// Place keyed limits above the Queue where possible, because one key may fill
// the queue.
//
// Cancellation: a request leaves the queue when its context ends.
//
// Body: not touched.
//
// Errors: requests that waited get an [Error] of kind [ErrFailFast], in
// fail-fast or at the end of maxWait. New ones get kind [ErrNotReady] in
// fail-fast or with a full queue. The error has the waiting time, and inner's
// last rejection as its cause. A rejection of kind [ErrClosed] is returned at
// once.
//
// Cost: three atomic loads while the queue is empty; no worker goroutine.
//
// With a capacity of 0 the layer does nothing. With a maxWait of 0 only the
// caller's context limits the wait. Negative values panic.
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
			Service: next,
			options: o,
			maxWait: maxWait,
			line:    line{capacity: capacity, shown: o.to.QueueLength},
			waited:  o.to.QueueWait,
			failed:  tally{to: o.to.LayerRejections.With("layer", "queue")},
		}
	}
}

type queue[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	maxWait time.Duration
	line    line
	waited  metrics.Histogram    // of those who stood in line, whatever came of it
	failed  tally                // those it turned away itself
	shut    atomic.Pointer[shut] // nil while the queue is open
}

// shut is the fail-fast state.
type shut struct {
	since time.Time
	cause error // inner's refusal that led to it
}

func (q *queue[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		sighted := q.line.sighted.Load()
		err := Poll(q.Service)
		switch {
		case err == nil, errors.Is(err, ErrClosed):
			return err
		case q.shut.Load() != nil:
			return q.Service.Ready(ctx)
		case q.line.hasRoom():
			return nil
		}
		// Room may come because inner closed, and inner be ready with the line full
		// of those it refuses, so look again at both.
		again := func() bool { return q.shut.Load() != nil || q.line.hasRoom() || q.line.sighted.Load() != sighted }
		if err := q.line.room.Wait(ctx, again); err != nil {
			return err
		}
	}
}

func (q *queue[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "queue", q.target)
	}
	if s := q.shut.Load(); s != nil {
		if err := Poll(q.Service); err != nil {
			q.failed.inc()
			return none, q.refuseShut(s, err)
		}
		q.shut.CompareAndSwap(s, nil)
		q.line.vain.Store(false)
	}
	if q.line.empty() {
		if q.line.vain.Load() && Poll(q.Service) == nil {
			q.line.vain.Store(false) // it became ready while nobody looked
		}
		rsp, err := q.Service.Call(ctx, req)
		if err == nil || !worthWaiting(err) {
			return rsp, err
		}
		q.line.refused(err)
	}
	return q.wait(ctx, req)
}

// wait stands in line until a Call is admitted or there is nothing more to
// wait for.
func (q *queue[Req, Rsp]) wait(ctx context.Context, req Req) (rsp Rsp, err error) {
	var none Rsp
	w := &waiter{since: time.Now(), turn: make(chan struct{}, 1)}
	returned := false
	defer func() {
		if w.rest > 0 {
			q.line.tired.Add(-1)
		}
		if !returned { // a panic, or Goexit
			defer q.line.leave(w)
			q.drop(rsp, err)
		}
	}()
	if err := q.join(w); err != nil {
		returned = true
		return none, err
	}
	for refusals := 0; ; refusals++ {
		if err = q.reachInner(ctx, w); err != nil {
			q.waited.Observe(milliseconds(time.Since(w.since)))
			break
		}
		inLine := time.Since(w.since)
		rsp, err = q.Service.Call(ctx, req)
		if err == nil || !worthWaiting(err) {
			q.line.passed()
			q.waited.Observe(milliseconds(inLine))
			returned = true
			return rsp, err
		}
		q.line.refused(err)
		if err = q.giveUp(ctx, w, err); err != nil {
			q.waited.Observe(milliseconds(time.Since(w.since)))
			break
		}
		if w.late == nil {
			w.late = q.end(w)
		}
		if refusals < bearable {
			q.line.rejoin(w)
		} else {
			q.line.lieDown(w, pause.Delay(refusals-bearable))
		}
	}
	returned = true
	return none, err
}

// join lets w stand in line, or returns why it may not.
func (q *queue[Req, Rsp]) join(w *waiter) error {
	if q.line.join(w, q.maxWait) {
		return nil
	}
	w.guest = q.line.tired.Load() > 0 && Poll(q.Service) == nil
	if !w.guest {
		return q.full()
	}
	w.late = q.end(w)
	q.line.join(w, q.maxWait)
	return nil
}

// full turns away one for whom there is no room.
func (q *queue[Req, Rsp]) full() error {
	q.failed.inc()
	return &Error{
		Layer: "queue", Target: q.target, Kind: errShed,
		Reason: fmt.Sprintf("full, %d are waiting", q.line.capacity), Err: q.line.reason(),
	}
}

// giveUp returns why w, whose Call was refused with err, does not go back to
// the line, or nil.
func (q *queue[Req, Rsp]) giveUp(ctx context.Context, w *waiter, err error) error {
	own, inVain := q.line.waited(w)
	alone := w.ready || w.rest > 0 // it is this request that inner does not take
	switch {
	case ctx.Err() != nil:
		return q.gone(ctx, w)
	case w.guest:
		return q.full()
	case q.isOver(inVain), q.isOver(own) && !alone:
		return q.failFast(w, err)
	case q.isOver(own):
		return q.tooLong(w, "refused to the end, although others may be served", err)
	}
	return nil
}

// bearable refusals in a row are ordinary races between waiters.
const bearable = 3

// pause keeps a waiter from spinning where inner's Ready says yes and its Call
// says no, time after time.
var pause = backoff.Backoff{Min: time.Millisecond, Max: 50 * time.Millisecond}

// reachInner waits for w's turn, then for inner. When it returns nil, w has
// left the line and the next in it has its turn.
func (q *queue[Req, Rsp]) reachInner(ctx context.Context, w *waiter) error {
	defer q.line.leave(w) // whatever happens, a panic of inner included
	if !q.awaitTurn(ctx, w) {
		return q.outcome(ctx, w)
	}
	until, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	began := q.line.lead(w, stop)
	if at, ok := q.limit(w, began); ok {
		var cancel context.CancelFunc
		until, cancel = context.WithDeadlineCause(until, at, errWaited)
		defer cancel()
	}
	err := q.Service.Ready(until)
	w.ready = err == nil
	if over := q.outcome(ctx, w); over != nil || err == nil || context.Cause(until) == errWaited {
		// At the end of its wait the head tries once more: it may be lucky,
		// and the refusal says what it waited for in vain.
		return over
	}
	return err
}

// awaitTurn reports whether it is w's turn. If it is not, the context is done, or
// w has waited for so long that it tries once more without: as the head does at
// the end of its wait.
func (q *queue[Req, Rsp]) awaitTurn(ctx context.Context, w *waiter) bool {
	if w.rest > 0 {
		rested := time.AfterFunc(w.rest, func() { q.line.rouse(w) })
		defer rested.Stop()
	}
	select {
	case <-w.turn:
		return true
	case <-w.late:
		w.ready = Poll(q.Service) == nil
	case <-ctx.Done():
	}
	return false
}

// outcome returns why there is no more to wait for, or nil.
func (q *queue[Req, Rsp]) outcome(ctx context.Context, w *waiter) error {
	if failed := q.line.failure(w); failed != nil {
		return q.tooLong(w, nothingReady, failed)
	}
	if ctx.Err() != nil {
		return q.gone(ctx, w)
	}
	return nil
}

var errWaited = errors.New("waited for as long as the queue allows")

// limit is when w, who waits since began, has waited for as long as it may, if
// there is a bound. A guest may for a moment, however long the line's is: there is
// no room for it if inner is busy again.
func (q *queue[Req, Rsp]) limit(w *waiter, began time.Time) (at time.Time, ok bool) {
	most := q.maxWait
	if w.guest && (most <= 0 || most > pause.Max) {
		most = pause.Max
	}
	return began.Add(most), most > 0
}

// end receives when w has waited for as long as it may.
func (q *queue[Req, Rsp]) end(w *waiter) <-chan time.Time {
	at, ok := q.limit(w, w.since)
	if !ok {
		return nil
	}
	return time.After(time.Until(at))
}

func (q *queue[Req, Rsp]) isOver(waited time.Duration) bool {
	return q.maxWait > 0 && waited >= q.maxWait
}

// failFast shuts the queue on behalf of w, its head.
func (q *queue[Req, Rsp]) failFast(w *waiter, cause error) error {
	q.shut.CompareAndSwap(nil, &shut{since: time.Now(), cause: cause})
	q.line.fail(cause)
	return q.tooLong(w, nothingReady, cause)
}

const nothingReady = "nothing was ready in time"

func (q *queue[Req, Rsp]) tooLong(w *waiter, reason string, cause error) error {
	q.failed.inc()
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrFailFast,
		Reason: reason, Waited: time.Since(w.since), Err: cause,
	}
}

func (q *queue[Req, Rsp]) refuseShut(s *shut, now error) error {
	if errors.Is(now, ErrClosed) {
		return now
	}
	if isBare(now) {
		now = s.cause // Poll's own error, or that of its context, does not say why
	}
	return &Error{
		Layer: "queue", Target: q.target, Kind: errShed,
		Reason: fmt.Sprintf("in fail-fast for %v", time.Since(s.since).Round(time.Millisecond)), Err: now,
	}
}

func (q *queue[Req, Rsp]) gone(ctx context.Context, w *waiter) error {
	reason := left.Why(ctx)
	if waitedFor := q.line.reason(); waitedFor != nil {
		reason += "; it waited for " + waitedFor.Error()
	}
	return &Error{
		Layer: "queue", Target: q.target, Kind: ErrNotReady,
		Reason: reason, Waited: time.Since(w.since), Err: context.Cause(ctx),
	}
}

// worthWaiting tells a refusal that may pass from one that will not, and from
// any other error.
func worthWaiting(err error) bool {
	return errors.Is(err, ErrNotReady) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFailFast)
}

func (q *queue[Req, Rsp]) Next() Service[Req, Rsp] { return q.Service }

func (q *queue[Req, Rsp]) Describe() Node {
	state := State{{"waiting", q.line.len()}, {"capacity", q.line.capacity}, {"max_wait", q.maxWait}}
	if n := q.line.rest(); n > 0 {
		state = append(state, Attr{"resting", n})
	}
	if n := q.failed.n.Load(); n > 0 {
		state = append(state, Attr{"refused", n})
	}
	if s := q.shut.Load(); s != nil {
		state = append(state, Attr{"fail_fast_for", time.Since(s.since).Round(time.Millisecond)}, Attr{"waits_for", s.cause.Error()})
	} else if since, ok := q.line.inVain(); ok {
		state = append(state, Attr{"not_ready_for", time.Since(since).Round(time.Millisecond)})
	}
	return Node{Name: "queue", State: state}
}
