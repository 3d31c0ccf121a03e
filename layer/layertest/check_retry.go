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

// attemptsEnd checks that a request is attempted at most MaxAttempts times, and that no attempt
// starts after ctx has ended. When the caller gets an attempt's result, all others must have
// ended, and their response bodies must be closed.
func attemptsEnd[Req, Rsp any](e env[Req, Rsp]) {
	for _, part := range []struct {
		name string
		run  func(env[Req, Rsp])
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
		mustf(violationOf(func() { part.run(e) }), "%s", part.name)
	}
}

// checkAttempts returns an error if n is more than the declared number of attempts.
func (r *rig[Req, Rsp]) checkAttempts(n int) error {
	if n > r.MaxAttempts {
		return fmt.Errorf("the inner service is called %d times, at most %d are declared", n, r.MaxAttempts)
	}
	return nil
}

// allRejected checks the number of attempts if the inner service rejects all of them.
func allRejected[Req, Rsp any](e env[Req, Rsp]) {
	if e.Queue > 0 {
		return // a queue waits instead
	}
	r := e.rig()
	r.deny()
	calls := r.inner.Calls()
	must(r.checkRejected(r.call(r.ctx, plan{}), nil))
	must(r.checkAttempts(r.inner.Calls() - calls))
}

// allFail checks the error that the call returns if the inner service fails in each attempt.
func allFail[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	must(r.checkFailure(r.call(r.ctx, plan{err: errRetryable}), errRetryable))
}

// rejectedAfterFailure makes the first attempt fail and rejects the second one. The result
// must not be a rejection, because the request was sent (see layer.ErrRetryRejected).
func rejectedAfterFailure[Req, Rsp any](e env[Req, Rsp]) {
	if e.Queue > 0 && e.MaxWait == 0 {
		return // the second attempt waits without limit
	}
	r := e.rig()
	p := r.call(r.ctx, plan{err: errRetryable, beforeEnd: r.inner.Deny})
	time.Sleep(r.retryTime() + time.Duration(r.MaxAttempts)*r.MaxWait)
	synctest.Wait()
	must(r.checkFailure(p, nil))
}

// canceledInAttempt checks that no attempt follows one during which the context ended.
func canceledInAttempt[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	// The context ends after the inner service has got the request and before it returns its error.
	p := r.call(ctx, plan{err: errRetryable, beforeEnd: func() { cancel(errCancel) }})
	switch {
	case !r.awaitRetries(p):
		failf("the call does not return")
	case r.inner.Calls() > 1:
		failf("%d attempts, though ctx ended in the first", r.inner.Calls())
	}
}

// canceledInPause checks that a call returns, and makes no further attempt, if its context ends between
// two attempts.
func canceledInPause[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	p := r.call(ctx, plan{err: errRetryable})
	// The layer does not retry, or it retries without a pause.
	if p.returned() {
		return
	}
	sent := r.inner.Calls()
	cancel(errCancel)
	synctest.Wait()
	if !p.returned() || !errors.Is(p.err, errCancel) {
		failf("the call does not return with the cause of its ctx: %v", p.err)
	}
	time.Sleep(r.retryTime())
	synctest.Wait()
	if r.inner.Calls() > sent {
		failf("an attempt is made after ctx has ended")
	}
}

// retryableResponses checks that a call with retries returns one complete response. It makes two
// calls. In the first call all responses are retryable, in the second call only the first response.
func retryableResponses[Req, Rsp any](e env[Req, Rsp]) {
	if e.Retryable == nil {
		return
	}
	// good is the first attempt whose response is not retryable.
	for _, good := range []int{e.MaxAttempts + 1, 2} {
		r := e.rig()
		p := r.call(r.ctx, plan{keepsBody: true, planOf: func(n int) plan { return plan{retryable: n < good} }})
		mustf(violationOf(func() { r.checkOneResponse(p) }), "response %d is not retryable", good)
	}
}

// checkOneResponse checks the call p after the layer made several attempts. The caller must get
// one complete response. All other attempts must have ended, and their response bodies must be
// closed.
func (r *rig[Req, Rsp]) checkOneResponse(p *probe[Req, Rsp]) {
	r.awaitRetries(p)
	must(p.checkSuccess(false)) // not the body's content
	must(r.checkAttempts(p.served()))
	open := 0
	for i, a := range p.attempts() {
		if !a.returned {
			failf("attempt %d continues, though the caller has the response of another", i+1)
		}
		if a.body != nil && !a.body.isClosed() {
			open++
		}
	}
	if open > 1 {
		failf("%d response bodies are open, of which the caller has one", open)
	}
	p.drain()
	if r.bodies && (p.readErr != nil || p.read != responseData(p.id)) {
		failf("the response body is %q: %w", p.read, p.readErr)
	}
}

// firstHangs checks a call with a first attempt that hangs. If the layer sends a second attempt, as
// a hedge does, the call must return the second attempt's response. Otherwise the check lets the
// first attempt respond.
func firstHangs[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	// Only the first attempt hangs, after it has read its request.
	p := r.call(r.ctx, plan{keepsBody: true, planOf: func(n int) plan { return plan{hold: n == 1, readFirst: true} }})
	if !r.awaitRetries(p) {
		if p.served() > 1 {
			failf("another attempt has a response, and the call does not return")
		}
		p.release()
		synctest.Wait()
	}
	r.checkOneResponse(p)
}

// allRespond checks that the caller gets one response if several attempts have one. It repeats this,
// because the order is random.
func allRespond[Req, Rsp any](e env[Req, Rsp]) {
	for range 20 {
		r := e.rig()
		// With readFirst, each attempt has read its request before it is held, so that the layer may send the next one.
		p := r.call(r.ctx, plan{keepsBody: true, hold: true, readFirst: true})
		// Half of retryTime leaves a layer time to send further attempts, and is before it must have returned.
		time.Sleep(r.retryTime() / 2)
		p.release()
		synctest.Wait()
		if !r.awaitRetries(p) {
			failf("the call does not return")
		}
		if p.err != nil {
			continue // the layer may limit the time of an attempt; then the caller has no response to check
		}
		r.checkOneResponse(p)
	}
}
