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
func doneReturns[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if _, err := r.saturate(); err != nil {
		return err
	}
	synctest.Wait()
	before := goroutines()
	if err := r.readyCanceled(); err != nil {
		return err
	}
	if err := checkLeaks(before, r.background); err != nil {
		return fmt.Errorf("after Ready: %w", err)
	}
	if !r.isLayer() {
		return nil
	}
	r = e.rig()
	synctest.Wait()
	before = goroutines()
	if err := r.callCanceled(); err != nil {
		return err
	}
	if err := checkLeaks(before, r.background); err != nil {
		return fmt.Errorf("after Call: %w", err)
	}
	if r.background {
		return nil // its goroutines may run until its context ends
	}
	return checkAccumulation(e)
}

// checkAccumulation checks that calls of Ready and Call leave no goroutine after they have
// returned, even if their context has not ended.
func checkAccumulation[Req, Rsp any](e env[Req, Rsp]) error {
	const n = 50
	r := e.rig()
	before := goroutines()
	for range n {
		if err := r.call(r.ctx, plan{}).checkSuccess(r.bodies); err != nil {
			return err
		}
		if err := r.readyNow(r.ctx); err != nil {
			return fmt.Errorf("Ready with all capacity free: %w", err)
		}
	}
	time.Sleep(time.Second)
	synctest.Wait()
	if leaked := startedSince(before); len(leaked) >= n/2 {
		return fmt.Errorf("%d calls and waits have ended, and %d goroutines run until ctx ends, one of them is\n%s",
			n, len(leaked), leaked[0])
	}
	return nil
}

// readyCanceled checks that a waiting Ready returns when its ctx is canceled, and when the
// deadline of its ctx is exceeded.
func (r *rig[Req, Rsp]) readyCanceled() error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	w := r.ready(ctx, 1)[0]
	cancel(errCancel)
	synctest.Wait()
	switch {
	case !w.returned():
		return errors.New("Ready does not return when ctx is canceled")
	case !errors.Is(w.err, errCancel):
		return fmt.Errorf("Ready returned %v, want the cause of ctx", w.err)
	}
	if r.MaxWait > 0 {
		return nil // a queue has room again when its requests time out
	}
	// A Ready that polls returns late.
	ctx, stop := context.WithTimeoutCause(r.ctx, time.Second, errCancel)
	defer stop()
	w = r.ready(ctx, 1)[0]
	time.Sleep(time.Second)
	synctest.Wait()
	switch {
	case !w.returned() || w.after > time.Second:
		return errors.New("Ready does not return at the deadline of ctx")
	case !errors.Is(w.err, errCancel):
		return fmt.Errorf("Ready returned %v at the deadline, want the cause of ctx", w.err)
	}
	return nil
}

// callCanceled checks that calls in flight return when their ctx ends, with errors that are not
// rejections. The function cancelHarmless checks calls that wait in a queue.
func (r *rig[Req, Rsp]) callCanceled() error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	if err := r.inFlightCanceled(ctx, func() { cancel(errCancel) }, errCancel); err != nil {
		return err
	}
	const timeout = 100 * time.Millisecond
	ctx, stop := context.WithTimeout(r.ctx, timeout)
	defer stop()
	if err := r.inFlightCanceled(ctx, func() { time.Sleep(timeout) }, context.DeadlineExceeded); err != nil {
		return fmt.Errorf("a deadline: %w", err)
	}
	return nil
}

func (r *rig[Req, Rsp]) inFlightCanceled(ctx context.Context, end func(), cause error) error {
	p := r.call(ctx, plan{hold: true})
	if p.served() == 0 || p.returned() {
		return fmt.Errorf("a call with all capacity free is not in flight: %v", p.err)
	}
	end()
	synctest.Wait()
	switch {
	case !p.returned():
		return errors.New("Call does not return when ctx is canceled")
	case !errors.Is(p.err, cause):
		return fmt.Errorf("Call returned %v, want the cause of ctx", p.err)
	case errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("a call in flight returned a rejection: %w", p.err)
	}
	return nil
}

// deadlineKept checks that the deadline of the inner service is not later than the
// deadline of the caller. Time in a queue must not extend the deadline.
func deadlineKept[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	deadline := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	if err := r.call(ctx, plan{}).checkDeadline(deadline); err != nil {
		return err
	}
	if r.Queue == 0 {
		return nil
	}
	wait := 10 * time.Second
	if r.MaxWait > 0 {
		wait = r.MaxWait / 2
	}
	r.inner.Deny()
	p := r.call(ctx, plan{})
	time.Sleep(wait)
	r.inner.Allow(1)
	synctest.Wait()
	if err := p.checkDeadline(deadline); err != nil {
		return fmt.Errorf("after %v in the queue: %w", wait, err)
	}
	ctx, cancel = context.WithTimeout(e.ctx, wait)
	defer cancel()
	p = r.call(ctx, plan{})
	time.Sleep(wait)
	synctest.Wait()
	if err := r.checkRejected(p, context.DeadlineExceeded); err != nil {
		return fmt.Errorf("deadline in the queue: %w", err)
	}
	return nil
}

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
