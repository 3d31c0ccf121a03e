package layertest

import (
	"context"
	"errors"
	"testing/synctest"

	"github.com/gotower/gotower/layer"
)

// readyPolls checks the rule that layer.Poll needs: with a context that has ended, Ready returns
// nil if there is capacity, and otherwise the context's cause.
func readyPolls[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	synctest.Wait()
	mustf(r.poll(), "Poll of a ready service")
	ctx, cancel := context.WithCancelCause(r.ctx)
	cancel(errCancel)
	mustf(r.readyNow(ctx), "Ready of a ready service with a done ctx")
	if !r.fills {
		return
	}
	r.saturate()
	if err := r.poll(); !errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrClosed) {
		failf("Poll of a saturated service: %v, want ErrNotReady", err)
	}
	if err := r.readyNow(ctx); !errors.Is(err, errCancel) {
		failf("Ready of a saturated service with a done ctx: %v, want the cause", err)
	}
}

// readyReserves checks that Ready takes no capacity: after it, all calls up to the limit
// are admitted.
func readyReserves[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	n := max(r.Limit, 1)
	if r.isLayer() {
		r.inner.Deny()
		r.inner.Allow(n)
	}
	for range 10 {
		for _, w := range r.ready(r.ctx, 100) {
			mustf(w.result(), "Ready of an unused service")
		}
	}
	if !r.isLayer() {
		must(r.checkServes())
		return
	}
	if calls := r.inner.Calls(); calls > 0 {
		failf("Ready made %d calls", calls)
	}
	// All capacity must still be there after so many calls of Ready.
	for i := range n {
		if p := r.call(r.ctx, plan{hold: true}); p.served() == 0 {
			failf("after 1000 times Ready, only %d of %d calls are admitted", i, n)
		}
	}
}

// readyWakes checks that every waiting Ready returns when capacity becomes free. For a
// layer with a limit and no queue, it repeats the check for each way in which a call can
// end.
func readyWakes[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	r.checkWakes(r.saturate())
	// What follows needs callers that find the limit used up, and no queue that admits them all the same.
	if r.Limit == 0 || r.Queue > 0 {
		return
	}
	for _, end := range []struct {
		name   string
		plan   plan
		cancel bool
	}{
		{name: "fails", plan: plan{err: errPlanned}},
		{name: "panics", plan: plan{panics: errPlanned}},
		{name: "ends its goroutine", plan: plan{exit: true}},
		{name: "gets a response without a body", plan: plan{noBody: true}},
		{name: "gets a body that fails", plan: plan{bodyErr: errPlanned}},
		{name: "is canceled", cancel: true},
	} {
		mustf(violationOf(func() { wakesAfter(e, end.plan, end.cancel) }), "a call in flight %s", end.name)
	}
	// Last, the capacity is missing in the inner service and not in the layer.
	r = e.rig()
	r.deny()
	mustf(violationOf(func() { r.checkWakes(func() { r.inner.Allow(1) }) }), "waiting for the inner service")
}

// wakesAfter fills the service with calls that follow the plan pl. It checks that every
// waiting Ready returns after one of these calls has ended. If canceled is true, it
// cancels the context of all these calls instead of ending one.
func wakesAfter[Req, Rsp any](e env[Req, Rsp], pl plan, canceled bool) {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(errCheckDone)
	pl.hold = true
	busy, err := r.fill(ctx, pl)
	must(err)
	// Ending any one of the calls must be enough.
	free := busy[0].release
	if canceled {
		free = func() { cancel(errCancel) }
	}
	r.checkWakes(free)
}

// checkWakes checks that many callers that wait in Ready return once free has made capacity free, and
// not earlier.
func (r *rig[Req, Rsp]) checkWakes(free func()) {
	waiters := r.ready(r.ctx, 100)
	for _, w := range waiters {
		if w.returned() {
			failf("Ready returned before there was capacity: %v", w.err)
		}
	}
	free()
	synctest.Wait()
	waiting := 0
	for _, w := range waiters {
		switch err := w.result(); {
		case errors.Is(err, errWaits):
			waiting++
		case err != nil:
			failf("Ready, when capacity came: %w", err)
		}
	}
	if waiting > 0 {
		failf("%d of %d waiting Readys do not return when there is capacity", waiting, len(waiters))
	}
	mustf(r.readyNow(r.ctx), "Ready, after capacity came")
}
