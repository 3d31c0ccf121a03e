package layertest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

// doneReturns checks that a blocked Ready or Call returns the cause of ctx at once when
// ctx ends. It also checks that Ready and Call leak no goroutine.
func doneReturns[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	r.saturate()
	synctest.Wait()
	baseline := goroutines()
	r.readyCanceled()
	mustf(checkLeaks(baseline, r.background), "after Ready")
	if !r.isLayer() {
		return
	}
	r = e.rig()
	synctest.Wait()
	baseline = goroutines()
	r.callCanceled()
	mustf(checkLeaks(baseline, r.background), "after Call")
	if r.background {
		return // its goroutines may run until its context ends
	}
	checkAccumulation(e)
}

// checkAccumulation checks that Ready and Call leave no goroutine after they have returned, even
// if their context has not ended.
func checkAccumulation[Req, Rsp any](e env[Req, Rsp]) {
	const n = 50
	r := e.rig()
	baseline := goroutines()
	for range n {
		must(r.call(r.ctx, plan{}).checkSuccess(r.bodies))
		mustf(r.readyNow(r.ctx), "Ready with all capacity free")
	}
	time.Sleep(time.Second)
	synctest.Wait()
	// A layer that leaks does so for each call. A few goroutines may belong to the layer as a whole.
	if leaked := startedSince(baseline); len(leaked) >= n/2 {
		failf("%d calls and waits have ended, and %d goroutines run until ctx ends, one of them is\n%s",
			n, len(leaked), leaked[0])
	}
}

// readyCanceled checks that a waiting Ready returns when its ctx is canceled, and when its ctx's
// deadline is exceeded.
func (r *rig[Req, Rsp]) readyCanceled() {
	ctx, cancel := context.WithCancelCause(r.ctx)
	w := r.ready(ctx, 1)[0]
	cancel(errCancel)
	synctest.Wait()
	switch {
	case !w.returned():
		failf("Ready does not return when ctx is canceled")
	case !errors.Is(w.err, errCancel):
		failf("Ready returned %v, want the cause of ctx", w.err)
	}
	if r.MaxWait > 0 {
		return // a queue has room again when its requests time out
	}
	// A Ready that polls returns late.
	ctx, stop := context.WithTimeoutCause(r.ctx, time.Second, errCancel)
	defer stop()
	w = r.ready(ctx, 1)[0]
	time.Sleep(time.Second)
	synctest.Wait()
	switch {
	case !w.returned() || w.delay > time.Second:
		failf("Ready does not return at the deadline of ctx")
	case !errors.Is(w.err, errCancel):
		failf("Ready returned %v at the deadline, want the cause of ctx", w.err)
	}
}

// callCanceled checks that calls in flight return when their ctx ends, with errors that are not
// rejections. The function cancelHarmless checks calls that wait in a queue.
func (r *rig[Req, Rsp]) callCanceled() {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	r.inFlightCanceled(ctx, func() { cancel(errCancel) }, errCancel)
	const timeout = 100 * time.Millisecond
	ctx, stop := context.WithTimeout(r.ctx, timeout)
	defer stop()
	mustf(violationOf(func() {
		r.inFlightCanceled(ctx, func() { time.Sleep(timeout) }, context.DeadlineExceeded)
	}), "a deadline")
}

// inFlightCanceled checks that a call in flight returns when end ends its context ctx, with the given
// cause and not as a rejection.
func (r *rig[Req, Rsp]) inFlightCanceled(ctx context.Context, end func(), cause error) {
	p := r.call(ctx, plan{hold: true})
	if p.served() == 0 || p.returned() {
		failf("a call with all capacity free is not in flight: %v", p.err)
	}
	end()
	synctest.Wait()
	switch {
	case !p.returned():
		failf("Call does not return when ctx is canceled")
	case !errors.Is(p.err, cause):
		failf("Call returned %v, want the cause of ctx", p.err)
	case errors.Is(p.err, layer.ErrNotReady):
		failf("a call in flight returned a rejection: %w", p.err)
	}
}

// deadlineKept checks that the inner service's deadline is not later than the caller's deadline.
// Time in a queue must not extend the deadline.
func deadlineKept[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	deadline := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	must(r.call(ctx, plan{}).checkDeadline(deadline))
	if r.Queue == 0 {
		return
	}
	wait := 10 * time.Second
	if r.MaxWait > 0 {
		wait = r.MaxWait / 2
	}
	// A call that waits in the queue gets the same deadline when it is served.
	r.inner.Deny()
	p := r.call(ctx, plan{})
	time.Sleep(wait)
	r.inner.Allow(1)
	synctest.Wait()
	mustf(p.checkDeadline(deadline), "after %v in the queue", wait)
	// A call whose deadline passes in the queue is rejected.
	ctx, cancel = context.WithTimeout(e.ctx, wait)
	defer cancel()
	p = r.call(ctx, plan{})
	time.Sleep(wait)
	synctest.Wait()
	mustf(r.checkRejected(p, context.DeadlineExceeded), "deadline in the queue")
}

// checkDeadline returns an error if the inner service got no deadline, or a later one than the
// caller's.
func (p *probe[Req, Rsp]) checkDeadline(deadline time.Time) error {
	ctx, _, _ := p.inner()
	if ctx == nil {
		return fmt.Errorf("the call was not served: %v", p.err)
	}
	inner, ok := ctx.Deadline()
	switch {
	case !ok:
		return errors.New("the inner service has no deadline")
	case inner.After(deadline):
		return fmt.Errorf("the deadline of the inner service is %v later than the caller's", inner.Sub(deadline))
	}
	return nil
}
