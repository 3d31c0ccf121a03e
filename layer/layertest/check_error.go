package layertest

import (
	"errors"
	"fmt"
	"testing/synctest"

	"github.com/gotower/gotower/layer"
)

// plannedError is an error of the inner service. The checks search for it by errors.As.
type plannedError struct{ id int }

func (e *plannedError) Error() string { return fmt.Sprintf("planned failure %d", e.id) }

// errorsPass checks that errors of the inner service reach the caller. errors.Is and
// errors.As must find them, and they must not be rejections. Panics must also reach the
// caller and free their slots.
func errorsPass[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	must(r.checkFailure(r.call(r.ctx, plan{err: errPlanned}), errPlanned))
	planned := &plannedError{1}
	p := r.call(r.ctx, plan{err: fmt.Errorf("wrapped: %w", planned)})
	must(r.checkFailure(p, nil))
	if found, ok := errors.AsType[*plannedError](p.err); !ok || found != planned {
		failf("the inner error does not pass errors.As: %w", p.err)
	}
	// A queue would wait instead of rejecting.
	if r.Queue == 0 {
		r.inner.Deny()
		mustf(r.checkRejected(r.call(r.ctx, plan{}), nil), "rejected by the inner service")
		r.inner.Allow(Unlimited)
		synctest.Wait()
	}
	// After this, a layer that loses a slot each time has none left.
	for range max(r.Limit, 1) {
		r.checkPanic()
	}
	mustf(r.checkCapacity(), "after panics")
}

// checkFailure checks the call p after all its attempts have failed. The call's error must not be
// a rejection. If cause is not nil, the error must match cause.
func (r *rig[Req, Rsp]) checkFailure(p *probe[Req, Rsp], cause error) error {
	switch {
	case !r.awaitRetries(p):
		return errors.New("the inner service fails, and the call does not return")
	case p.err == nil:
		return errors.New("the inner service fails, and the call succeeds")
	case errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("the inner service fails after it got the request, and the call is rejected: %w", p.err)
	case cause != nil && !errors.Is(p.err, cause):
		return fmt.Errorf("the inner error does not pass errors.Is: %w", p.err)
	}
	if err := r.checkAttempts(p.served()); err != nil {
		return err
	}
	return p.requestError()
}

// checkPanic makes the inner service panic once and call runtime.Goexit once. Both must
// reach the caller.
func (r *rig[Req, Rsp]) checkPanic() {
	// A layer that recovers and panics anew must use the same value.
	value := &plannedError{}
	switch p := r.call(r.ctx, plan{panics: value}); {
	case !p.returned():
		failf("the inner service panics, and the call does not return")
	case p.panicked != any(value):
		failf("the inner service panics, and the caller gets the panic %v and the error %v", p.panicked, p.err)
	}
	if p := r.call(r.ctx, plan{exit: true}); !p.returned() || !p.exited {
		failf("the inner service ends its goroutine, and the caller's goroutine continues: %v", p.err)
	}
}
