package layertest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

// checkRejected returns an error unless the call p returned a rejection that matches cause. If
// cause is nil, every rejection except ErrClosed is accepted. It also checks that the request is
// unchanged. It adds the call to r.rejected, which compares the request again at the end of the
// check.
func (r *rig[Req, Rsp]) checkRejected(p *probe[Req, Rsp], cause error) error {
	switch {
	case !r.awaitRetries(p):
		return errors.New("the call does not return")
	case p.err == nil:
		return errors.New("the call is not rejected")
	case !errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("the error does not match ErrNotReady: %w", p.err)
	case cause != nil && !errors.Is(p.err, cause):
		return fmt.Errorf("the error does not match %q: %w", cause, p.err)
	// ErrClosed tells the caller never to come back, so only a closed service may return it.
	case !errors.Is(cause, layer.ErrClosed) && errors.Is(p.err, layer.ErrClosed):
		return fmt.Errorf("the service is not closed, and the call returns ErrClosed: %w", p.err)
	case p.served() > 0:
		return errors.New("the call was rejected, and the inner service served it")
	}
	r.rejected.add(r, p)
	return r.checkUntouched(p)
}

// checkUntouched returns an error if the rejected request of p was read, closed or changed. Its caller
// may still send it elsewhere.
func (r *rig[Req, Rsp]) checkUntouched(p *probe[Req, Rsp]) error {
	switch mismatch := r.requests.changed(p.req, p.id); {
	case p.sent.reads.Load() > 0:
		return errors.New("the request was rejected, but its body was read")
	case p.sent.closes.Load() > 0:
		return errors.New("the request was rejected, but its body was closed")
	case r.requests.hasBody() && r.requests.bodyOf(p.req) != p.sent:
		return errors.New("the request was rejected, but its body was replaced")
	case mismatch != "":
		return fmt.Errorf("the request was rejected, but its %s was changed", mismatch)
	}
	return nil
}

// doneRejects checks that a call with an ended context is rejected with the context's cause, even
// if there is capacity (compare golang/go#63615). The inner service must not be called.
func doneRejects[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	canceled, cancel := context.WithCancelCause(e.ctx)
	cancel(errCancel)
	expired, stop := context.WithDeadlineCause(e.ctx, time.Now().Add(-time.Second), errCancel)
	defer stop()
	for _, ctx := range []context.Context{canceled, expired} {
		calls := r.innerCalls()
		mustf(r.checkRejected(r.call(ctx, plan{}), errCancel), "ctx done (%v)", ctx.Err())
		if r.innerCalls() > calls {
			failf("the inner service was called with a done ctx")
		}
	}
}

// innerCalls returns how often the inner service was called. A layer with neither a limit nor a
// queue may leave the rejection of a request to the inner service, so for such a layer only
// admitted calls count.
func (r *rig[Req, Rsp]) innerCalls() int {
	switch {
	case r.isLayer() && r.admits():
		return r.inner.Calls()
	case r.isLayer():
		return len(r.inner.Requests())
	case r.service.Served != nil:
		return r.service.Served(r.svc)
	}
	return 0
}

// saturationRejects checks that a call is rejected at once if all capacity is taken. The error
// must name the layer.
func saturationRejects[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	free := r.saturate()
	start := time.Now()
	for range 3 { // a rejection must not make room for the next call
		p := r.call(r.ctx, plan{})
		if !r.awaitRetries(p) {
			failf("a call waits without capacity")
		}
		must(r.checkRejected(p, nil))
		var layerErr *layer.Error
		if r.admits() && (!errors.As(p.err, &layerErr) || layerErr.Layer == "") {
			failf("the rejection does not name its layer: %w", p.err)
		}
	}
	if elapsed := time.Since(start); elapsed > 3*r.retryTime() {
		failf("three rejections took %v", elapsed)
	}
	free()
	synctest.Wait()
	mustf(r.checkServes(), "after capacity came back")
	if r.Queue > 0 && r.MaxWait > 0 {
		maxWaitExact(e)
	}
}

// maxWaitExact checks that calls in the queue fail exactly after MaxWait, and that the
// queue works again afterwards.
func maxWaitExact[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	r.inner.Deny()
	queued := make([]*probe[Req, Rsp], min(r.Queue, 3))
	for i := range queued {
		queued[i] = r.call(r.ctx, plan{})
	}
	// One nanosecond before the limit, all of them must still wait.
	time.Sleep(r.MaxWait - 1)
	synctest.Wait()
	for _, p := range queued {
		if p.returned() {
			failf("a call returns before the maximum wait of %v: %v", r.MaxWait, p.err)
		}
	}
	time.Sleep(1)
	synctest.Wait()
	for i, p := range queued {
		if !p.returned() {
			failf("call %d still waits after %v", i+1, r.MaxWait)
		}
		must(r.checkRejected(p, layer.ErrFailFast))
		var layerErr *layer.Error
		if !errors.As(p.err, &layerErr) || layerErr.Waited != r.MaxWait {
			failf("the rejection does not report a wait of %v: %w", r.MaxWait, p.err)
		}
	}
	r.inner.Allow(Unlimited)
	synctest.Wait()
	mustf(r.checkServes(), "after fail-fast, when capacity came back")
}
