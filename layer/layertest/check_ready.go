package layertest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"

	"github.com/gotower/gotower/layer"
)

// readyPolls checks the rule that layer.Poll needs: with a context that has ended, Ready
// returns nil if there is capacity, and otherwise the cause of the context.
func readyPolls[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	synctest.Wait()
	if err := r.poll(); err != nil {
		return fmt.Errorf("Poll of a ready service: %w", err)
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	cancel(errCancel)
	if err := r.readyNow(ctx); err != nil {
		return fmt.Errorf("Ready of a ready service with a done ctx: %w", err)
	}
	if !r.fills {
		return nil
	}
	if _, err := r.saturate(); err != nil {
		return err
	}
	if err := r.poll(); !errors.Is(err, layer.ErrNotReady) || errors.Is(err, layer.ErrClosed) {
		return fmt.Errorf("Poll of a saturated service: %v, want ErrNotReady", err)
	}
	if err := r.readyNow(ctx); !errors.Is(err, errCancel) {
		return fmt.Errorf("Ready of a saturated service with a done ctx: %v, want the cause", err)
	}
	return nil
}

// readyReserves checks that Ready takes no capacity: after it, all calls up to the limit
// are admitted.
func readyReserves[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	n := max(r.Limit, 1)
	if r.isLayer() {
		r.inner.Deny()
		r.inner.Allow(n)
	}
	for range 10 {
		for _, w := range r.ready(r.ctx, 100) {
			if err := w.result(); err != nil {
				return fmt.Errorf("Ready of an unused service: %w", err)
			}
		}
	}
	if !r.isLayer() {
		return r.checkServes()
	}
	if calls := r.inner.Calls(); calls > 0 {
		return fmt.Errorf("Ready made %d calls", calls)
	}
	for i := range n {
		if p := r.call(r.ctx, plan{hold: true}); p.served() == 0 {
			return fmt.Errorf("after 1000 times Ready, only %d of %d calls are admitted", i, n)
		}
	}
	return nil
}

// readyWakes checks that every waiting Ready returns when capacity becomes free. For a
// layer with a limit and no queue, it repeats the check for each way in which a call can
// end.
func readyWakes[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	free, err := r.saturate()
	if err != nil {
		return err
	}
	if err := r.checkWakes(free); err != nil {
		return err
	}
	if r.Limit == 0 || r.Queue > 0 {
		return nil
	}
	for _, end := range []struct {
		name   string
		plan   plan
		cancel bool
	}{
		{"fails", plan{err: errPlanned}, false},
		{"panics", plan{panics: errPlanned}, false},
		{"ends its goroutine", plan{exit: true}, false},
		{"gets a response without a body", plan{noBody: true}, false},
		{"gets a body that fails", plan{bodyErr: errPlanned}, false},
		{"is canceled", plan{}, true},
	} {
		if err := wakesAfter(e, end.plan, end.cancel); err != nil {
			return fmt.Errorf("a call in flight %s: %w", end.name, err)
		}
	}
	r = e.rig()
	if err := r.deny(); err != nil {
		return err
	}
	if err := r.checkWakes(func() { r.inner.Allow(1) }); err != nil {
		return fmt.Errorf("waiting for the inner service: %w", err)
	}
	return nil
}

// wakesAfter fills the service with calls that follow the plan pl. It checks that every
// waiting Ready returns after one of these calls has ended. If canceled is true, it
// cancels the context of all these calls instead of ending one.
func wakesAfter[Req, Rsp any](e env[Req, Rsp], pl plan, canceled bool) error {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(errCheckDone)
	pl.hold = true
	held, err := r.fill(ctx, pl)
	if err != nil {
		return err
	}
	if canceled {
		return r.checkWakes(func() { cancel(errCancel) })
	}
	return r.checkWakes(held[0].release)
}

func (r *rig[Req, Rsp]) checkWakes(free func()) error {
	all := r.ready(r.ctx, 100)
	for _, w := range all {
		if w.returned() {
			return fmt.Errorf("Ready returned before there was capacity: %v", w.err)
		}
	}
	free()
	synctest.Wait()
	waiting := 0
	for _, w := range all {
		switch err := w.result(); {
		case errors.Is(err, errWaits):
			waiting++
		case err != nil:
			return fmt.Errorf("Ready, when capacity came: %w", err)
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d of %d waiting Readys do not return when there is capacity", waiting, len(all))
	}
	if err := r.readyNow(r.ctx); err != nil {
		return fmt.Errorf("Ready, after capacity came: %w", err)
	}
	return nil
}
