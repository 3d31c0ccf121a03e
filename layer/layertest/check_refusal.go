package layertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

// doneRefused is invariant 5: a call whose context is already done is refused
// with the cause, even if there is capacity (golang/go#63615 shows how easily
// that is missed), and nothing inside hears of it.
func doneRefused[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	gone, cancel := context.WithCancelCause(e.ctx)
	cancel(errCancel)
	late, stop := context.WithDeadlineCause(e.ctx, time.Now().Add(-time.Second), errCancel)
	defer stop()
	for _, ctx := range []context.Context{gone, late} {
		before := r.reached()
		p := r.do(ctx, plan{})
		if err := r.refused(p, errCancel); err != nil {
			return fmt.Errorf("ctx done (%v): %w", ctx.Err(), err)
		}
		if r.reached() > before {
			return errors.New("the inner service was called all the same")
		}
	}
	return nil
}

// reached counts the requests that came to the inner service. A layer that
// does not decide on admission may leave the refusal to that: then only those
// count which it let in.
func (r *rig[Req, Rsp]) reached() int {
	switch {
	case !r.layer && r.service.Served != nil:
		return r.service.Served(r.svc)
	case !r.layer:
		return 0
	case !r.own():
		return len(r.far.Requests())
	}
	return r.far.Calls()
}

// refused returns an error unless the call returned a rejection that matches
// cause and the request is untouched.
func (r *rig[Req, Rsp]) refused(p *probe[Req, Rsp], cause error) error {
	switch {
	case !r.judged(p):
		return errors.New("the call does not return")
	case p.err == nil:
		return errors.New("the call is not refused")
	case !errors.Is(p.err, layer.ErrNotReady):
		return fmt.Errorf("the error does not match ErrNotReady: %w", p.err)
	case cause != nil && !errors.Is(p.err, cause):
		return fmt.Errorf("the error does not match %q: %w", cause, p.err)
	case !errors.Is(cause, layer.ErrClosed) && errors.Is(p.err, layer.ErrClosed):
		return fmt.Errorf("the service is not closed, and the call returns ErrClosed: %w", p.err)
	case p.served() > 0:
		return errors.New("refused, but the inner service has served it")
	}
	r.turnedAway(func() error { return r.stillRefused(p) }, r.far)
	return r.untouched(p)
}

// stillRefused looks at a call again when there has been capacity and time for
// whatever the subject may have left to work on it.
func (r *rig[Req, Rsp]) stillRefused(p *probe[Req, Rsp]) error {
	if p.served() > 0 {
		return fmt.Errorf("the call was refused, and the inner service has served it later: %w", p.err)
	}
	if err := r.untouched(p); err != nil {
		return fmt.Errorf("a while later: %w", err)
	}
	return nil
}

func (r *rig[Req, Rsp]) untouched(p *probe[Req, Rsp]) error {
	if what := p.sent.touched(); what != "" {
		return fmt.Errorf("the request was refused, but %s", what)
	}
	if hasBody[Req]() && bodyOf(p.req) != p.sent {
		return errors.New("the request was refused, but its body was replaced")
	}
	if what := changed(p.req, r.request(p.id), r.request(p.id)); what != "" {
		return fmt.Errorf("the request was refused, but its %s was changed", what)
	}
	return nil
}

// saturationRefuses is invariant 6: without capacity a call is rejected at once
// with the name of the layer. A queue holds as many as declared, for as long as
// declared.
func saturationRefuses[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	free, err := r.saturate()
	if err != nil {
		return err
	}
	began := time.Now()
	// More than one: a refusal must not make room for the next.
	for range 3 {
		p := r.do(r.ctx, plan{})
		if !r.judged(p) {
			return errors.New("a call waits where nothing is left, instead of being refused")
		}
		if err := r.refused(p, nil); err != nil {
			return err
		}
		var where *layer.Error
		if r.own() && (!errors.As(p.err, &where) || where.Layer == "") {
			return fmt.Errorf("the refusal does not say which layer it comes from: %w", p.err)
		}
	}
	if took := time.Since(began); took > 3*r.patience() {
		return fmt.Errorf("three refusals took %v", took)
	}
	free()
	settle()
	if err := r.serves(); err != nil {
		return fmt.Errorf("after capacity came back: %w", err)
	}
	if r.queue > 0 && r.maxWait > 0 {
		return failsFast(e)
	}
	return nil
}

// failsFast is the part of invariant 6 for a queue with a maximum wait: the
// wait is exact, also for a call that never becomes the head, and the queue
// works again afterwards.
func failsFast[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	r.far.Deny()
	began := time.Now()
	line := make([]*probe[Req, Rsp], min(r.queue, 3))
	for i := range line {
		line[i] = r.do(r.ctx, plan{})
	}
	for _, p := range line {
		if p.returned() {
			return fmt.Errorf("the queue does not wait: %v", p.err)
		}
	}
	time.Sleep(r.maxWait - 1)
	settle()
	for _, p := range line {
		if p.returned() {
			return fmt.Errorf("the queue gave up after %v, before its %v", time.Since(began), r.maxWait)
		}
	}
	time.Sleep(1)
	settle()
	for i, p := range line {
		if !p.returned() {
			return fmt.Errorf("the queue still waits after %v (number %d)", r.maxWait, i+1)
		}
		if err := r.refusedFast(p); err != nil {
			return err
		}
	}
	r.far.Allow(Unlimited)
	settle()
	if err := r.serves(); err != nil {
		return fmt.Errorf("after the queue had failed and capacity came back: %w", err)
	}
	return nil
}

func (r *rig[Req, Rsp]) refusedFast(p *probe[Req, Rsp]) error {
	if err := r.refused(p, layer.ErrFailFast); err != nil {
		return err
	}
	var where *layer.Error
	if !errors.As(p.err, &where) || where.Waited != r.maxWait {
		return fmt.Errorf("the refusal does not say that the call has waited for %v: %w", r.maxWait, p.err)
	}
	return nil
}

// refusalUntouched is invariant 7, for every way in which a call is refused:
// no byte of the body is read, it is not closed, and nothing is changed.
func refusalUntouched[Req, Rsp any](e env[Req, Rsp]) error {
	gone, cancel := context.WithCancelCause(e.ctx)
	cancel(errCancel)
	r := e.rig()
	if err := r.refused(r.do(gone, plan{}), errCancel); err != nil {
		return fmt.Errorf("ctx done: %w", err)
	}
	if r.fills {
		if _, err := r.saturate(); err != nil {
			return err
		}
		if err := r.refused(r.do(r.ctx, plan{}), nil); err != nil {
			return fmt.Errorf("saturated: %w", err)
		}
	}
	if r.layer {
		r = e.rig()
		r.far.Deny()
		if r.queue > 0 {
			if err := r.refusedInQueue(); err != nil {
				return err
			}
		} else if err := r.refused(r.do(r.ctx, plan{}), nil); err != nil {
			return fmt.Errorf("the inner service is not ready: %w", err)
		}
	}
	if r.closes {
		r = e.rig()
		r.close()
		if err := r.refused(r.do(r.ctx, plan{}), layer.ErrClosed); err != nil {
			return fmt.Errorf("closed: %w", err)
		}
	}
	return nil
}

// refusedInQueue ends a wait by its ctx, and another by closing.
func (r *rig[Req, Rsp]) refusedInQueue() error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	p := r.do(ctx, plan{})
	cancel(errCancel)
	settle()
	if err := r.refused(p, errCancel); err != nil {
		return fmt.Errorf("ctx done while waiting: %w", err)
	}
	p = r.do(r.ctx, plan{})
	if !r.closes {
		return nil
	}
	r.close()
	settle()
	if err := r.refused(p, layer.ErrClosed); err != nil {
		return fmt.Errorf("closed while waiting: %w", err)
	}
	return nil
}
