package layertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

// errAgain is an error that any classifier takes for one to try again after.
var errAgain = fmt.Errorf("the inner service fails once more: %w", layer.ErrAttemptTimeout)

// triesEnd is invariant 16: a request has at most as many attempts as declared,
// and none after ctx has ended. When one attempt is returned, the others are
// canceled and their bodies closed.
func triesEnd[Req, Rsp any](e env[Req, Rsp]) error {
	for _, part := range []struct {
		when string
		run  func(env[Req, Rsp]) error
	}{
		{"refused each time", triesRefused[Req, Rsp]},
		{"failing each time", triesFail[Req, Rsp]},
		{"failing once, then refused", triesFailThenRefused[Req, Rsp]},
		{"the caller goes as a try fails", triesLeft[Req, Rsp]},
		{"the caller goes between two tries", triesLeftBetween[Req, Rsp]},
		{"responses to be sent again for", triesGiveUp[Req, Rsp]},
		{"the first try hangs", triesHang[Req, Rsp]},
		{"all tries answer at once", triesMeet[Req, Rsp]},
	} {
		if err := part.run(e); err != nil {
			return fmt.Errorf("%s: %w", part.when, err)
		}
	}
	return nil
}

func triesRefused[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	if err := r.deny(); err != nil {
		return err
	}
	before := r.far.Calls()
	if r.queue > 0 {
		return nil // which waits, and calls as often as its turn comes
	}
	if err := r.refused(r.do(r.ctx, plan{}), nil); err != nil {
		return err
	}
	return r.within(r.far.Calls() - before)
}

func (r *rig[Req, Rsp]) within(tries int) error {
	if tries > r.tries {
		return fmt.Errorf("the inner service is called %d times, at most %d are declared", tries, r.tries)
	}
	return nil
}

func triesFail[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	p := r.do(r.ctx, plan{fails: errAgain})
	if err := r.failed(p); err != nil {
		return err
	}
	if !errors.Is(p.err, errAgain) {
		return fmt.Errorf("the inner error does not pass errors.Is: %w", p.err)
	}
	return nil
}

// triesFailThenRefused fails the first attempt and rejects the others. The
// result must not be a rejection, because the request was sent (see
// layer.ErrRetryRejected).
func triesFailThenRefused[Req, Rsp any](e env[Req, Rsp]) error {
	if e.queue > 0 && e.maxWait == 0 {
		return nil // the second try waits without end
	}
	r := e.rig()
	p := r.do(r.ctx, plan{fails: errAgain, before: r.far.Deny})
	time.Sleep(r.patience() + time.Duration(r.tries)*r.maxWait)
	settle()
	return r.failed(p)
}

func triesLeft[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	p := r.do(ctx, plan{fails: errAgain, before: func() { cancel(errCancel) }})
	time.Sleep(r.patience())
	settle()
	switch {
	case !p.returned():
		return errors.New("the call does not return")
	case r.far.Calls() > 1:
		return fmt.Errorf("it is sent %d times, though ctx is done as the first try fails", r.far.Calls())
	}
	return nil
}

func triesLeftBetween[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	p := r.do(ctx, plan{fails: errAgain})
	if p.returned() {
		return nil
	}
	sent := r.far.Calls()
	cancel(errCancel)
	settle()
	if !p.returned() || !errors.Is(p.err, errCancel) {
		return fmt.Errorf("the call does not return with the cause of its ctx: %v", p.err)
	}
	time.Sleep(r.patience())
	settle()
	if r.far.Calls() > sent {
		return errors.New("it is sent again when its caller has gone")
	}
	return nil
}

// triesGiveUp answers each attempt, or each but the first, with a retryable
// response. The returned one is complete, and the others are closed.
func triesGiveUp[Req, Rsp any](e env[Req, Rsp]) error {
	if e.again == nil {
		return nil
	}
	for _, good := range []int{e.tries + 1, 2} {
		r := e.rig()
		p := r.do(r.ctx, plan{keep: true, each: func(try int) plan { return plan{again: try < good} }})
		if !r.judged(p) {
			return errors.New("the call does not return")
		}
		if err := r.oneLeft(p); err != nil {
			return fmt.Errorf("response %d is good: %w", good, err)
		}
	}
	return nil
}

// oneLeft checks the attempts of a call that returned a response: it can be
// read to its end, and all other attempts have ended.
func (r *rig[Req, Rsp]) oneLeft(p *probe[Req, Rsp]) error {
	if err := p.well(false); err != nil {
		return err
	}
	if err := r.within(p.served()); err != nil {
		return err
	}
	open := 0
	for i, try := range p.tries() {
		if !try.returned {
			return fmt.Errorf("attempt %d continues, though the caller has the response of another one", i+1)
		}
		if try.body != nil && !try.body.closed() {
			open++
		}
	}
	if open > 1 {
		return fmt.Errorf("%d response bodies are open, of which the caller has one", open)
	}
	p.drain()
	if r.bodies && (p.readErr != nil || p.read != responseData(p.id)) {
		return fmt.Errorf("the response reads as %q: %w", p.read, p.readErr)
	}
	return nil
}

// triesHang lets the first try hang and the others answer. A layer that sends
// no more while it hangs has nothing to show here.
func triesHang[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	p := r.do(r.ctx, plan{keep: true, each: func(try int) plan { return plan{holds: try == 1, early: true} }})
	if !r.judged(p) {
		if p.served() > 1 {
			return errors.New("another try has answered, and the call does not return")
		}
		p.release()
		settle()
	}
	return r.oneLeft(p)
}

// triesMeet answers all current attempts at the same time.
func triesMeet[Req, Rsp any](e env[Req, Rsp]) error {
	for range 20 {
		r := e.rig()
		p := r.do(r.ctx, plan{keep: true, holds: true, early: true})
		time.Sleep(r.patience() / 2)
		p.release()
		settle()
		if !r.judged(p) {
			return errors.New("the call does not return")
		}
		// It may not let a try take so long.
		if p.err == nil {
			if err := r.oneLeft(p); err != nil {
				return err
			}
		}
	}
	return nil
}
