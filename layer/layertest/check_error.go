package layertest

import (
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// plannedError is found again by errors.As.
type plannedError struct{ id int }

func (e *plannedError) Error() string { return fmt.Sprintf("planned failure %d", e.id) }

// errorsPass is invariant 17: errors of the inner service pass errors.Is and
// errors.As, none of them becomes a refusal, and panics pass after all was
// put back in its place.
func errorsPass[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	p := r.do(r.ctx, plan{fails: errPlanned})
	if err := r.failed(p); err != nil {
		return err
	}
	if !errors.Is(p.err, errPlanned) {
		return fmt.Errorf("the inner error does not pass errors.Is: %w", p.err)
	}
	planned := &plannedError{p.id}
	p = r.do(r.ctx, plan{fails: fmt.Errorf("wrapped: %w", planned)})
	if err := r.failed(p); err != nil {
		return err
	}
	var found *plannedError
	if !errors.As(p.err, &found) || found != planned {
		return fmt.Errorf("the inner error does not pass errors.As: %w", p.err)
	}
	if r.queue == 0 {
		r.far.Deny()
		if err := r.refused(r.do(r.ctx, plan{}), nil); err != nil {
			return fmt.Errorf("refused by the inner service: %w", err)
		}
		r.far.Allow(Unlimited)
		settle()
	}
	// As often as there are slots: one lost each time, and none is left.
	for range max(r.limit, 1) {
		if err := r.unwinds(); err != nil {
			return err
		}
	}
	if err := r.exact(); err != nil {
		return fmt.Errorf("after panics: %w", err)
	}
	return nil
}

func (r *rig[Req, Rsp]) failed(p *probe[Req, Rsp]) error {
	switch {
	case !r.judged(p):
		return errors.New("the inner service fails, and the call does not return")
	case p.err == nil:
		return errors.New("the inner service fails, and the call does not")
	case errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("the inner service fails, which may have had an effect; the call is refused: %w", p.err)
	}
	if err := r.within(p.served()); err != nil {
		return err
	}
	return p.asSent()
}

// unwinds panics once and ends a goroutine once.
func (r *rig[Req, Rsp]) unwinds() error {
	value := &plannedError{}
	switch p := r.do(r.ctx, plan{panics: value}); {
	case !p.returned():
		return errors.New("the inner service panics, and the call does not return")
	case p.panicked != any(value):
		return fmt.Errorf("the inner service panics; its caller sees the panic %v and the error %v", p.panicked, p.err)
	}
	if p := r.do(r.ctx, plan{exits: true}); !p.returned() || !p.exited {
		return fmt.Errorf("the inner service ends its goroutine; the caller's does not: %v", p.err)
	}
	return nil
}
