package layertest

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// readyPolls is the rule of design.md §2 that makes layer.Poll possible: with
// a done context, Ready is nil if there is capacity and the cause if not.
func readyPolls[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	settle()
	if err := r.poll(); err != nil {
		return fmt.Errorf("Poll of a ready service: %w", err)
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	cancel(errCancel)
	if w := r.wait(ctx); !w.returned() || w.err != nil {
		return fmt.Errorf("Ready of a ready service with a done ctx: %w", w.result())
	}
	if !r.fills {
		return nil
	}
	if _, err := r.saturate(); err != nil {
		return err
	}
	if err := r.poll(); !notReady(err) {
		return fmt.Errorf("Poll of a saturated service: %v, want ErrNotReady", err)
	}
	if w := r.wait(ctx); !w.returned() || !errors.Is(w.err, errCancel) {
		return fmt.Errorf("Ready of a saturated service with a done ctx: %v, want the cause", w.result())
	}
	return nil
}

// notReady reports whether err is a rejection other than ErrClosed.
func notReady(err error) bool {
	return errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// readyReserves is invariant 2: however often Ready has said yes, all capacity
// is still there.
func readyReserves[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	n := max(r.limit, 1)
	if r.layer {
		r.far.Deny()
		r.far.Allow(n)
	}
	// Many at a time, and again: were one of them to keep anything, those
	// after it would wait.
	for range 10 {
		for _, w := range r.waiters(r.ctx, 100) {
			if !w.returned() || w.err != nil {
				return fmt.Errorf("Ready of an unused service: %w", w.result())
			}
		}
	}
	if !r.layer {
		return r.serves()
	}
	if calls := r.far.Calls(); calls > 0 {
		return fmt.Errorf("Ready made %d calls", calls)
	}
	for i := range n {
		if p := r.do(r.ctx, plan{holds: true}); p.served() == 0 {
			return fmt.Errorf("after 1000 times Ready, only %d of %d calls are admitted", i, n)
		}
	}
	return nil
}

// readyWakes is invariant 3: capacity wakes all waiting Readys, and later ones
// return at once.
func readyWakes[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	free, err := r.saturate()
	if err != nil {
		return err
	}
	if err := r.wakes(free); err != nil {
		return err
	}
	if r.limit == 0 || r.queue > 0 {
		return nil
	}
	if err := wakesHowever(e); err != nil {
		return err
	}
	// It may have looked at its own limit alone.
	r = e.rig()
	if err := r.deny(); err != nil {
		return err
	}
	if err := r.wakes(func() { r.far.Allow(1) }); err != nil {
		return fmt.Errorf("waiting for the inner service: %w", err)
	}
	return nil
}

// wakesHowever releases a slot by outcomes other than a complete response.
func wakesHowever[Req, Rsp any](e env[Req, Rsp]) error {
	for _, how := range []struct {
		name string
		plan plan
		goes bool // the caller does
	}{
		{"fails", plan{fails: errPlanned}, false},
		{"panics", plan{panics: errPlanned}, false},
		{"ends its goroutine", plan{exits: true}, false},
		{"gets a response without a body", plan{bare: true}, false},
		{"gets a body that breaks", plan{breaks: errPlanned}, false},
		{"is left by its caller", plan{}, true},
	} {
		r := e.rig()
		ctx, cancel := context.WithCancelCause(r.ctx)
		how.plan.holds = true
		held, err := r.fill(ctx, how.plan)
		if err == nil {
			free := held[0].release
			if how.goes {
				free = func() { cancel(errCancel) }
			}
			err = r.wakes(free)
		}
		cancel(errOver)
		if err != nil {
			return fmt.Errorf("a call in flight %s: %w", how.name, err)
		}
	}
	return nil
}

func (r *rig[Req, Rsp]) wakes(free func()) error {
	all := r.waiters(r.ctx, 100)
	for _, w := range all {
		if w.returned() {
			return fmt.Errorf("Ready returned before there was capacity: %v", w.err)
		}
	}
	free()
	settle()
	asleep := 0
	for _, w := range all {
		switch {
		case !w.returned():
			asleep++
		case w.err != nil:
			return fmt.Errorf("Ready, when capacity came: %w", w.err)
		}
	}
	if asleep > 0 {
		return fmt.Errorf("%d of %d waiting Readys do not return when there is capacity", asleep, len(all))
	}
	if w := r.wait(r.ctx); !w.returned() || w.err != nil {
		return fmt.Errorf("Ready, after capacity came: %w", w.result())
	}
	return nil
}

// result returns the error of a waiter that may not have returned.
func (w *waiter) result() error {
	if !w.returned() {
		return errWaits
	}
	return w.err
}
