package layertest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/gotower/gotower/layer"
)

// errRetryable is an error of the inner service that every layer with retries must retry.
var errRetryable = fmt.Errorf("retryable failure of the inner service: %w", layer.ErrAttemptTimeout)

// attemptsEnd checks that a request has at most MaxAttempts attempts, and that none
// starts after ctx has ended. When the caller has the result of one attempt, all others
// must have ended, and their response bodies must be closed.
func attemptsEnd[Req, Rsp any](e env[Req, Rsp]) error {
	for _, part := range []struct {
		name string
		run  func(env[Req, Rsp]) error
	}{
		{"all attempts are rejected", allRejected[Req, Rsp]},
		{"all attempts fail", allFail[Req, Rsp]},
		{"a rejection after a failure", rejectedAfterFailure[Req, Rsp]},
		{"ctx ends in an attempt", canceledInAttempt[Req, Rsp]},
		{"ctx ends between attempts", canceledInPause[Req, Rsp]},
		{"retryable responses", retryableResponses[Req, Rsp]},
		{"the first attempt hangs", firstHangs[Req, Rsp]},
		{"all attempts respond at once", allRespond[Req, Rsp]},
	} {
		if err := part.run(e); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

func (r *rig[Req, Rsp]) checkAttempts(n int) error {
	if n > r.MaxAttempts {
		return fmt.Errorf("the inner service is called %d times, at most %d are declared", n, r.MaxAttempts)
	}
	return nil
}

func allRejected[Req, Rsp any](e env[Req, Rsp]) error {
	if e.Queue > 0 {
		return nil // a queue waits instead
	}
	r := e.rig()
	if err := r.deny(); err != nil {
		return err
	}
	before := r.inner.Calls()
	if err := r.checkRejected(r.call(r.ctx, plan{}), nil); err != nil {
		return err
	}
	return r.checkAttempts(r.inner.Calls() - before)
}

func allFail[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	return r.checkFailure(r.call(r.ctx, plan{err: errRetryable}), errRetryable)
}

// rejectedAfterFailure makes the first attempt fail and rejects the second one. The result
// must not be a rejection, because the request was sent (see layer.ErrRetryRejected).
func rejectedAfterFailure[Req, Rsp any](e env[Req, Rsp]) error {
	if e.Queue > 0 && e.MaxWait == 0 {
		return nil // the second attempt waits without limit
	}
	r := e.rig()
	p := r.call(r.ctx, plan{err: errRetryable, before: r.inner.Deny})
	time.Sleep(r.retryTime() + time.Duration(r.MaxAttempts)*r.MaxWait)
	synctest.Wait()
	return r.checkFailure(p, nil)
}

func canceledInAttempt[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	p := r.call(ctx, plan{err: errRetryable, before: func() { cancel(errCancel) }})
	switch {
	case !r.awaitRetries(p):
		return errors.New("the call does not return")
	case r.inner.Calls() > 1:
		return fmt.Errorf("%d attempts, though ctx ended in the first", r.inner.Calls())
	}
	return nil
}

func canceledInPause[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	p := r.call(ctx, plan{err: errRetryable})
	if p.returned() {
		return nil
	}
	sent := r.inner.Calls()
	cancel(errCancel)
	synctest.Wait()
	if !p.returned() || !errors.Is(p.err, errCancel) {
		return fmt.Errorf("the call does not return with the cause of its ctx: %v", p.err)
	}
	time.Sleep(r.retryTime())
	synctest.Wait()
	if r.inner.Calls() > sent {
		return errors.New("an attempt is made after ctx has ended")
	}
	return nil
}

// retryableResponses makes two calls with responses that must be retried. In the first call
// all responses are retryable, in the second one only the first response.
func retryableResponses[Req, Rsp any](e env[Req, Rsp]) error {
	if e.Retryable == nil {
		return nil
	}
	for _, good := range []int{e.MaxAttempts + 1, 2} {
		r := e.rig()
		p := r.call(r.ctx, plan{keep: true, each: func(n int) plan { return plan{retryable: n < good} }})
		if err := r.checkOneResponse(p); err != nil {
			return fmt.Errorf("response %d is not retryable: %w", good, err)
		}
	}
	return nil
}

// checkOneResponse checks the call p after the layer made several attempts. The caller
// must have one complete response. All other attempts must have ended, and their response
// bodies must be closed.
func (r *rig[Req, Rsp]) checkOneResponse(p *probe[Req, Rsp]) error {
	r.awaitRetries(p)
	if err := p.checkSuccess(false); err != nil {
		return err
	}
	if err := r.checkAttempts(p.served()); err != nil {
		return err
	}
	open := 0
	for i, a := range p.attempts() {
		if !a.returned {
			return fmt.Errorf("attempt %d continues, though the caller has the response of another", i+1)
		}
		if a.body != nil && !a.body.isClosed() {
			open++
		}
	}
	if open > 1 {
		return fmt.Errorf("%d response bodies are open, of which the caller has one", open)
	}
	p.drain()
	if r.bodies && (p.readErr != nil || p.read != responseData(p.id)) {
		return fmt.Errorf("the response body is %q: %w", p.read, p.readErr)
	}
	return nil
}

// firstHangs checks a call with a first attempt that hangs. If the layer sends a second attempt, as
// a hedge does, the call must return the response of the second attempt. Otherwise the check lets
// the first attempt respond.
func firstHangs[Req, Rsp any](e env[Req, Rsp]) error {
	r := e.rig()
	p := r.call(r.ctx, plan{keep: true, each: func(n int) plan { return plan{hold: n == 1, readFirst: true} }})
	if !r.awaitRetries(p) {
		if p.served() > 1 {
			return errors.New("another attempt has a response, and the call does not return")
		}
		p.release()
		synctest.Wait()
	}
	return r.checkOneResponse(p)
}

func allRespond[Req, Rsp any](e env[Req, Rsp]) error {
	for range 20 {
		r := e.rig()
		p := r.call(r.ctx, plan{keep: true, hold: true, readFirst: true})
		time.Sleep(r.retryTime() / 2)
		p.release()
		synctest.Wait()
		if !r.awaitRetries(p) {
			return errors.New("the call does not return")
		}
		if p.err != nil {
			continue // the layer may limit the time of an attempt
		}
		if err := r.checkOneResponse(p); err != nil {
			return err
		}
	}
	return nil
}
