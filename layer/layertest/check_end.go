package layertest

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// closedSticky is invariant 13: after the end of the service, Ready and Call
// return ErrClosed, for waiting and for later callers. Calls in flight
// continue.
func closedSticky[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	flying, waiting, err := r.callsBeforeClose()
	if err != nil {
		return err
	}
	var inReady []*waiter
	if r.fills {
		inReady = r.waiters(r.ctx, 10)
	}
	r.close()
	r.closeAgain()
	settle()
	for _, w := range inReady {
		if !w.returned() || !errors.Is(w.err, layer.ErrClosed) {
			return fmt.Errorf("a Ready that waited for the closed service: %v, want ErrClosed", w.result())
		}
	}
	for _, p := range waiting {
		if err := r.refused(p, layer.ErrClosed); err != nil {
			return fmt.Errorf("a call that waited in the closed queue: %w", err)
		}
	}
	for _, p := range flying {
		p.release()
		settle()
		if err := p.well(r.bodies); err != nil {
			return fmt.Errorf("in flight when it closed: %w", err)
		}
	}
	for range 3 {
		if err := r.closedNow(); err != nil {
			return err
		}
	}
	return nil
}

// callsBeforeClose leaves nothing ready, with one call in flight and as many
// as can in the queue.
func (r *rig[Req, Rsp]) callsBeforeClose() (flying, waiting []*probe[Req, Rsp], err error) {
	if !r.layer {
		if r.fills {
			r.service.Fill(r.svc)
		}
		return nil, nil, nil
	}
	// One that takes the last slot would hide the inner service from Ready.
	if r.limit != 1 {
		flying = append(flying, r.do(r.ctx, plan{holds: true}))
	}
	if r.queue == 0 {
		return flying, nil, r.deny()
	}
	r.far.Deny()
	for range r.queue {
		waiting = append(waiting, r.call(r.ctx, plan{}))
	}
	settle()
	return flying, waiting, nil
}

// closeAgain does what must not change a closed service.
func (r *rig[Req, Rsp]) closeAgain() {
	r.close()
	if r.layer {
		r.far.Allow(1)
	}
}

func (r *rig[Req, Rsp]) closedNow() error {
	gone, cancel := context.WithCancelCause(r.ctx)
	cancel(errCancel)
	for _, ctx := range []context.Context{r.ctx, gone} {
		if w := r.wait(ctx); !w.returned() || !errors.Is(w.err, layer.ErrClosed) {
			return fmt.Errorf("Ready of a closed service: %v, want ErrClosed", w.result())
		}
	}
	if err := r.poll(); !errors.Is(err, layer.ErrClosed) {
		return fmt.Errorf("Poll of a closed service: %v, want ErrClosed", err)
	}
	if err := r.refused(r.do(r.ctx, plan{}), layer.ErrClosed); err != nil {
		return fmt.Errorf("Call of a closed service: %w", err)
	}
	return nil
}

// ending is a way in which the reader of a body, or its sender, ends it.
type ending[Req, Rsp any] struct {
	name   string
	breaks error
	closes bool // the reader closes the body
	cancel bool // the caller's ctx ends
	read   func(*probe[Req, Rsp])
	on     bool // and then reads on
}

func bodyEndings[Req, Rsp any]() []ending[Req, Rsp] {
	all, some, none := (*probe[Req, Rsp]).readAll, (*probe[Req, Rsp]).readSome, func(*probe[Req, Rsp]) {}
	return []ending[Req, Rsp]{
		{"drained", nil, false, false, all, false},
		{"drained and closed", nil, true, false, all, false},
		{"drained, closed, and ctx done", nil, true, true, all, false},
		{"half read and closed", nil, true, false, some, false},
		{"closed unread", nil, true, false, none, false},
		{"never read, ctx done", nil, false, true, none, false},
		{"half read, ctx done", nil, false, true, some, false},
		{"half read, ctx done, closed", nil, true, true, some, false},
		{"broken off", errPlanned, false, false, all, false},
		{"broken off and closed", errPlanned, true, false, all, false},
		{"half read, ctx done, read on", nil, false, true, some, true},
	}
}

// endsOnce is invariant 14: what counts a response ends it once, at the end
// that it declares. Every body is ended in every way; then all capacity must
// be there, no less and no more.
func endsOnce[Req, Rsp any](e env[Req, Rsp]) error {
	if e.layer {
		if err := endsBare(e); err != nil {
			return err
		}
	}
	if !e.bodies {
		return nil
	}
	for _, how := range bodyEndings[Req, Rsp]() {
		if err := how.verify(e); err != nil {
			return fmt.Errorf("body %s: %w", how.name, err)
		}
	}
	return nil
}

// endsBare ends a response without a body: when Call returns.
func endsBare[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	before := r.endedNow()
	for range 3 {
		if err := r.do(r.ctx, plan{bare: true}).well(false); err != nil {
			return err
		}
	}
	if n := r.endedNow() - before; r.ended != nil && n != 3 {
		return fmt.Errorf("3 responses without a body are counted as %d", n)
	}
	if err := r.exact(); err != nil {
		return fmt.Errorf("after responses without a body: %w", err)
	}
	return nil
}

func (r *rig[Req, Rsp]) endedNow() int {
	if r.ended == nil {
		return 0
	}
	return r.ended()
}

func (how ending[Req, Rsp]) verify(e env[Req, Rsp]) error {
	r := e.rig()
	before := r.endedNow()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	open := make([]*probe[Req, Rsp], max(r.limit, 1))
	for i := range open {
		open[i] = r.answer(ctx, plan{keep: true, breaks: how.breaks})
		if how.breaks != nil && errors.Is(open[i].err, how.breaks) {
			return how.readAhead(r, open[i])
		}
		if err := open[i].well(false); err != nil {
			return err
		}
	}
	if err := r.heldOpen(before, len(open)); err != nil {
		return err
	}
	if err := how.end(r, open, cancel); err != nil {
		return err
	}
	if n := r.endedNow() - before; r.ended != nil && n != len(open) {
		return fmt.Errorf("%d responses are counted as %d", len(open), n)
	}
	if r.limit == 0 {
		return r.serves()
	}
	return r.exact()
}

// readAhead checks a call that failed because the layer read the failing body
// before it returned. The layer must have closed that body.
func (how ending[Req, Rsp]) readAhead(r *rig[Req, Rsp], p *probe[Req, Rsp]) error {
	if _, _, body := p.inner(); body == nil || !body.closed() {
		return errors.New("the call fails as the body does, and the inner body was not closed")
	}
	return r.exact()
}

// end ends the bodies that are open, and looks at what has reached the inner
// service of it.
func (how ending[Req, Rsp]) end(r *rig[Req, Rsp], open []*probe[Req, Rsp], cancel context.CancelCauseFunc) error {
	for _, p := range open {
		how.read(p)
	}
	if how.cancel {
		cancel(errCancel)
		settle()
	}
	for _, p := range open {
		if how.on && r.layer {
			if err := p.readsOn(); err != nil {
				return err
			}
		}
		if how.closes {
			p.close()
			p.close()
		}
		if err := how.reached(r, p); err != nil {
			return err
		}
	}
	settle()
	return nil
}

// heldOpen looks while n bodies are open: they are counted as ended if the
// layer ends at return, and hold their slots if not.
func (r *rig[Req, Rsp]) heldOpen(before, n int) error {
	if r.atReturn {
		if ended := r.endedNow() - before; r.ended != nil && ended != n {
			return fmt.Errorf("%d responses have returned, %d are counted as ended", n, ended)
		}
		return nil
	}
	if ended := r.endedNow() - before; r.ended != nil && ended != 0 {
		return fmt.Errorf("%d responses are counted as ended while their bodies are open", ended)
	}
	if r.limit == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	p := r.do(ctx, plan{})
	cancel(errCancel)
	settle()
	if p.served() > 0 {
		return fmt.Errorf("%d bodies are open, and a call more is admitted", n)
	}
	return nil
}

// readsOn reads on after ctx ended the body. Buffered bytes may follow, but an
// early end must not look like the correct one.
func (p *probe[Req, Rsp]) readsOn() error {
	p.readAll()
	if p.readErr == nil && p.read != responseData(p.id) {
		return fmt.Errorf("ctx cuts the body off, which then ends like a whole one: it reads as %q", p.read)
	}
	p.readErr = nil
	return nil
}

// reached looks at the inner body: whatever the reader does reaches it.
func (how ending[Req, Rsp]) reached(r *rig[Req, Rsp], p *probe[Req, Rsp]) error {
	if !r.layer {
		return nil
	}
	ctx, _, body := p.inner()
	want := how.breaks
	switch {
	case how.closes && !body.closed():
		return errors.New("the inner body was not closed")
	case how.cancel && ctx.Err() == nil:
		return errors.New("the inner ctx does not end")
	case want == nil && p.readErr != nil, want != nil && !errors.Is(p.readErr, want):
		return fmt.Errorf("reading ends with %v, want %v", p.readErr, want)
	}
	return nil
}
