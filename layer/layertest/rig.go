package layertest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

var (
	errCheckDone   = errors.New("the check is done")
	errCancel      = errors.New("canceled by the check")
	errWaits       = errors.New("it still waits")
	errExited      = errors.New("it ended its goroutine")
	errPlanned     = errors.New("planned failure of the inner service")
	errLostContext = errors.New("the inner service was called with a context that does not derive from the caller's")
)

// env holds what one check needs: the subject, a context that ends with the check, and the list of
// rejected calls.
type env[Req, Rsp any] struct {
	*subject[Req, Rsp]
	ctx      context.Context
	rejected *rejected[Req, Rsp]
}

// rejected holds a check's rejected calls. When the check ends, checkAgain finds a call that was
// served later or whose request was changed.
type rejected[Req, Rsp any] struct {
	mu    sync.Mutex
	calls []rejectedCall[Req, Rsp]
}

// rejectedCall is a rejected call with the rig that it was made in.
type rejectedCall[Req, Rsp any] struct {
	rig   *rig[Req, Rsp]
	probe *probe[Req, Rsp]
}

// add remembers the rejected call p, made with r, for checkAgain.
func (c *rejected[Req, Rsp]) add(r *rig[Req, Rsp], p *probe[Req, Rsp]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, rejectedCall[Req, Rsp]{r, p})
}

// checkAgain returns an error if the inner service has served a rejected call, or if a rejected
// call's request was changed. It first gives a layer's inner service unlimited capacity and waits
// for a second. A rejected call that is wrongly still queued is then served.
func (c *rejected[Req, Rsp]) checkAgain() error {
	if len(c.calls) == 0 {
		return nil
	}
	for _, call := range c.calls {
		if call.rig.isLayer() {
			call.rig.inner.Allow(Unlimited)
		}
	}
	time.Sleep(time.Second)
	synctest.Wait()
	for _, call := range c.calls {
		if call.probe.served() > 0 {
			return fmt.Errorf("the call was rejected, and the inner service served it later: %w", call.probe.err)
		}
		if err := call.rig.checkUntouched(call.probe); err != nil {
			return fmt.Errorf("later: %w", err)
		}
	}
	return nil
}

// rig is a new instance of the subject on which a check makes calls. All its capacity is
// free at first.
type rig[Req, Rsp any] struct {
	env[Req, Rsp]
	svc   layer.Service[Req, Rsp]
	inner *innerService[Req, Rsp] // the service below the layer; nil if the subject is a service
	calls atomic.Int64
}

// rig makes a new service of the subject, for one check.
func (e env[Req, Rsp]) rig() *rig[Req, Rsp] {
	r := &rig[Req, Rsp]{env: e}
	if !e.isLayer() {
		if r.svc = e.service.New(e.ctx); r.svc == nil {
			failf("New of the spec returns no service")
		}
		return r
	}
	r.inner = newInner(e.subject, e.ctx.Done())
	// This ends calls of a layer that ignores ctx.
	context.AfterFunc(e.ctx, r.inner.Close)
	if r.svc = e.New(e.ctx, r.inner); r.svc == nil {
		failf("the layer of the spec returns no service")
	}
	return r
}

// close closes the service, or the inner service below a layer.
func (r *rig[Req, Rsp]) close() {
	if r.isLayer() {
		r.inner.Close()
	} else {
		r.service.Close(r.svc)
	}
}

// saturate takes all capacity of the subject, so that the subject is not ready. free makes the
// subject ready again, so that every waiting Ready returns.
func (r *rig[Req, Rsp]) saturate() (free func()) {
	switch {
	case !r.isLayer():
		if free = r.service.Fill(r.svc); free == nil {
			failf("Fill of the spec returns no function that frees the capacity")
		}
		return free
	case !r.admits():
		r.deny()
		return func() { r.inner.Allow(1) }
	}
	busy, err := r.fill(r.ctx, plan{hold: true})
	must(err)
	return func() {
		// A queue may derive its readiness from its own room or from the layer
		// below. All calls are released, so that both are ready.
		last := len(busy)
		if r.Queue == 0 {
			last = 1
		}
		r.inner.Allow(Unlimited)
		for _, p := range busy[:last] {
			p.release()
		}
	}
}

// deny removes all capacity from the inner service. If the subject runs its own goroutines, deny
// then makes 16 calls, because such a subject may notice the change only from rejections.
func (r *rig[Req, Rsp]) deny() {
	r.inner.Deny()
	if !r.background {
		return
	}
	for range 16 {
		mustf(r.checkRejected(r.call(r.ctx, plan{}), nil), "the inner service is not ready")
	}
}

// fill starts Limit+Queue calls. The inner service holds the first Limit of them, and the
// others wait in the queue. The calls follow the plan pl when they are released.
func (r *rig[Req, Rsp]) fill(ctx context.Context, pl plan) ([]*probe[Req, Rsp], error) {
	// Without a limit, calls wait in the queue only if the inner service admits none.
	if r.Limit == 0 {
		r.inner.Deny()
	}
	busy := make([]*probe[Req, Rsp], r.Limit+r.Queue)
	for i := range busy {
		busy[i] = r.call(ctx, pl)
		if busy[i].returned() {
			return nil, fmt.Errorf("limit %d, queue %d: call %d was not admitted: %v", r.Limit, r.Queue, i+1, busy[i].err)
		}
	}
	return busy, nil
}

// checkCapacity returns an error unless the layer admits exactly Limit+Queue calls. It
// leaves no call in flight.
func (r *rig[Req, Rsp]) checkCapacity() error {
	if !r.admits() {
		return r.checkServes()
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer func() {
		cancel(errCheckDone)
		synctest.Wait()
		r.inner.Allow(Unlimited)
	}()
	if _, err := r.fill(ctx, plan{hold: true}); err != nil {
		return err
	}
	// The layer is full, so one more call must return, with a rejection.
	if p := r.call(ctx, plan{hold: true}); !r.awaitRetries(p) {
		return fmt.Errorf("limit %d, queue %d: one more call is admitted", r.Limit, r.Queue)
	}
	return nil
}

// checkServes returns an error unless the subject is ready and serves a call.
func (r *rig[Req, Rsp]) checkServes() error {
	if err := r.poll(); err != nil {
		return fmt.Errorf("is not ready: %w", err)
	}
	return r.callToEnd(r.ctx, plan{}).checkSuccess(r.bodies && r.isLayer())
}

// callToEnd makes a call with the plan pl, and waits until the call has returned or is blocked. If
// the subject is a service, a blocked call gets up to a minute to return.
func (r *rig[Req, Rsp]) callToEnd(ctx context.Context, pl plan) *probe[Req, Rsp] {
	p := r.call(ctx, pl)
	if r.isLayer() {
		return p
	}
	// In the bubble, this minute passes at once when all goroutines are blocked.
	select {
	case <-p.done:
	case <-time.After(time.Minute):
	}
	synctest.Wait()
	return p
}

// awaitRetries reports whether the call p has returned, if necessary after the time for its
// retries. This time is retryTime, the sum of the longest pauses between the attempts.
func (r *rig[Req, Rsp]) awaitRetries(p *probe[Req, Rsp]) bool {
	if !p.returned() && r.MaxAttempts > 1 {
		time.Sleep(r.retryTime())
		synctest.Wait()
	}
	return p.returned()
}

// poll returns the result of layer.Poll, or errWaits if layer.Poll does not return at once.
func (r *rig[Req, Rsp]) poll() error {
	w := startWaiter(func() error { return layer.Poll(r.svc) })
	synctest.Wait()
	return w.result()
}

// waiter runs a function, such as Ready, on its own goroutine, and keeps its error and how long
// it took.
type waiter struct {
	done  chan struct{}
	err   error
	delay time.Duration
}

// ready starts n goroutines that call Ready, and then calls synctest.Wait.
func (r *rig[Req, Rsp]) ready(ctx context.Context, n int) []*waiter {
	waiters := make([]*waiter, n)
	for i := range waiters {
		waiters[i] = startWaiter(func() error { return r.svc.Ready(ctx) })
	}
	synctest.Wait()
	return waiters
}

// readyNow returns the result of Ready, or errWaits if Ready does not return at once.
func (r *rig[Req, Rsp]) readyNow(ctx context.Context) error { return r.ready(ctx, 1)[0].result() }

// startWaiter calls f on a new goroutine.
func startWaiter(f func() error) *waiter {
	w := &waiter{done: make(chan struct{}), err: errExited} // unless f returns
	start := time.Now()
	go func() {
		defer close(w.done)
		w.err = recovered(f)
		w.delay = time.Since(start)
	}()
	return w
}

func (w *waiter) returned() bool { return isClosed(w.done) }

// result returns the function's error, or errWaits if it has not returned.
func (w *waiter) result() error {
	if !w.returned() {
		return errWaits
	}
	return w.err
}

// panicError is the error that reports a panic of the subject.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("it panicked: %v\n%s", p.value, p.stack) }

// recovered calls f and returns its error. If f panics, it returns a panicError.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return f()
}
