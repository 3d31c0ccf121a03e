package layertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// doneReturns is invariant 4: when ctx ends, Ready and Call return at once
// with its cause, and nothing stays behind.
func doneReturns[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if _, err := r.saturate(); err != nil {
		return err
	}
	settle()
	before := goroutines()
	if err := r.readyLeaves(); err != nil {
		return err
	}
	if err := r.leftSince(before); err != nil {
		return fmt.Errorf("after Ready: %w", err)
	}
	if !r.layer {
		return nil
	}
	r = e.rig()
	settle()
	before = goroutines()
	if err := r.callLeaves(); err != nil {
		return err
	}
	if err := r.leftSince(before); err != nil {
		return fmt.Errorf("after Call: %w", err)
	}
	if r.background {
		return nil // it may have some at work until its own context ends
	}
	return leavesNone(e)
}

// leavesNone ends calls and waits while their context continues, and checks
// that nothing accumulates until the context ends.
func leavesNone[Req, Rsp any](e env[Req, Rsp]) error {
	const n = 50
	r := e.rig()
	before := goroutines()
	for range n {
		if err := r.do(r.ctx, plan{}).well(r.bodies); err != nil {
			return err
		}
		if w := r.wait(r.ctx); !w.returned() || w.err != nil {
			return fmt.Errorf("Ready with all capacity free: %w", w.result())
		}
	}
	time.Sleep(time.Second)
	settle()
	// A few are not for each, but for all of them.
	left := newSince(before)
	if len(left) < n/2 {
		return nil
	}
	return fmt.Errorf("%d calls and waits are over, and %d goroutines go on until ctx ends, one of them is\n%s", n, len(left), left[0])
}

// readyLeaves cancels a waiting Ready, and lets a deadline expire.
func (r *rig[Req, Rsp]) readyLeaves() error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	w := r.wait(ctx)
	settle()
	cancel(errCancel)
	switch {
	case !w.returned():
		return errors.New("Ready does not return when ctx is cancelled")
	case !errors.Is(w.err, errCancel):
		return fmt.Errorf("Ready returned %v, want the cause of ctx", w.err)
	}
	if r.maxWait > 0 {
		// A queue that gives up on what it holds has room again.
		return nil
	}
	// Polling now and then would pass the check above, but not be on time.
	ctx, stop := context.WithTimeoutCause(r.ctx, time.Second, errCancel)
	defer stop()
	w = r.wait(ctx)
	time.Sleep(time.Second)
	switch {
	case !w.returned() || w.after > time.Second:
		return errors.New("Ready does not return at the deadline of ctx")
	case !errors.Is(w.err, errCancel):
		return fmt.Errorf("Ready returned %v at the deadline, want the cause of ctx", w.err)
	}
	return nil
}

// callLeaves ends the ctx of calls in flight and, where there is a queue, of
// those that wait. The first were admitted: they fail, but they were not
// refused.
func (r *rig[Req, Rsp]) callLeaves() error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	if err := r.inFlightLeaves(ctx, func() { cancel(errCancel) }, errCancel); err != nil {
		return err
	}
	const soon = 100 * time.Millisecond
	ctx, stop := context.WithTimeout(r.ctx, soon)
	defer stop()
	if err := r.inFlightLeaves(ctx, func() { time.Sleep(soon) }, context.DeadlineExceeded); err != nil {
		return fmt.Errorf("a deadline: %w", err)
	}
	if r.queue == 0 {
		return nil
	}
	return r.waitingLeave()
}

func (r *rig[Req, Rsp]) inFlightLeaves(ctx context.Context, end func(), cause error) error {
	p := r.do(ctx, plan{holds: true})
	if p.served() == 0 || p.returned() {
		return fmt.Errorf("a call with all capacity free is not in flight: %v", p.err)
	}
	end()
	settle()
	switch {
	case !p.returned():
		return errors.New("Call does not return when ctx is cancelled")
	case !errors.Is(p.err, cause):
		return fmt.Errorf("Call returned %v, want the cause of ctx", p.err)
	case errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("a call that was admitted failed with %w, which calls it untouched", p.err)
	}
	return nil
}

// waitingLeave cancels one from inside the line, where that is long enough, and
// its head.
func (r *rig[Req, Rsp]) waitingLeave() error {
	r.far.Deny()
	var line []*probe[Req, Rsp]
	var cancels []context.CancelCauseFunc
	for range min(r.queue, 2) {
		ctx, cancel := context.WithCancelCause(r.ctx)
		cancels = append(cancels, cancel)
		p := r.do(ctx, plan{})
		if p.returned() {
			return fmt.Errorf("the queue does not wait: %v", p.err)
		}
		line = append(line, p)
	}
	for i, p := range slices.Backward(line) {
		cancels[i](errCancel)
		settle()
		if err := r.refused(p, errCancel); err != nil {
			return fmt.Errorf("number %d in the queue, whose ctx is cancelled: %w", i+1, err)
		}
	}
	return nil
}

// ctxOutlives is invariant 15: the context that the inner service was given is
// alive for as long as the body is read, and ends with the caller's.
func ctxOutlives[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	// A derived context that is canceled by defer, the usual mistake, ends when
	// Call returns. One that is canceled at the first byte ends during the
	// body.
	outer, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	for _, part := range []func(*probe[Req, Rsp]){
		func(*probe[Req, Rsp]) {},
		(*probe[Req, Rsp]).readSome,
	} {
		p := r.do(outer, plan{keep: true})
		if err := p.well(false); err != nil {
			return err
		}
		part(p)
		settle()
		ctx, _, _ := p.inner()
		if ctx == nil {
			return errLost
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the inner ctx ends before the body is closed: %w", context.Cause(ctx))
		}
		p.drain()
		if p.readErr != nil || p.read != responseData(p.id) {
			return fmt.Errorf("the body read as %q: %w", p.read, p.readErr)
		}
	}
	p := r.do(outer, plan{keep: true})
	cancel(errCancel)
	settle()
	if ctx, _, _ := p.inner(); !errors.Is(context.Cause(ctx), errCancel) {
		return fmt.Errorf("while the body is read, the caller's ctx ends; the cause of the inner one is %v", context.Cause(ctx))
	}
	if r.far.strays() > 0 {
		return errLost
	}
	return nil
}

// deadlineKept is invariant 18: the inner service never sees a later deadline
// than the caller has set, and time in a queue counts.
func deadlineKept[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	deadline := time.Now().Add(time.Hour)
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	p := r.do(ctx, plan{})
	if err := p.keeps(deadline); err != nil {
		return err
	}
	if r.queue == 0 {
		return nil
	}
	patience := 10 * time.Second
	if r.maxWait > 0 {
		patience = r.maxWait / 2
	}
	r.far.Deny()
	// A deadline that is derived at the turn omits the time in the queue.
	p = r.do(ctx, plan{})
	time.Sleep(patience)
	r.far.Allow(1)
	settle()
	if err := p.keeps(deadline); err != nil {
		return fmt.Errorf("after %v in the queue: %w", patience, err)
	}
	ctx, cancel = context.WithTimeout(e.ctx, patience)
	defer cancel()
	p = r.do(ctx, plan{})
	time.Sleep(patience)
	settle()
	if err := r.refused(p, context.DeadlineExceeded); err != nil {
		return fmt.Errorf("deadline in the queue: %w", err)
	}
	return nil
}

func (p *probe[Req, Rsp]) keeps(deadline time.Time) error {
	ctx, _, _ := p.inner()
	if ctx == nil {
		return fmt.Errorf("the call was not served: %v", p.err)
	}
	inner, ok := ctx.Deadline()
	switch {
	case !ok:
		return errors.New("the inner service sees no deadline")
	case inner.After(deadline):
		return fmt.Errorf("the inner service sees a deadline %v later than the caller's", inner.Sub(deadline))
	}
	return nil
}
