package layertest

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"

	"github.com/gotower/gotower/layer"
)

// closedFinal closes the service and checks that Ready and Call return ErrClosed. It checks the
// callers that wait when the service is closed, and later callers. It also checks that calls in
// flight continue.
func closedFinal[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	inFlight, queued := r.callsBeforeClose()
	var ready []*waiter
	if r.fills {
		ready = r.ready(r.ctx, 10)
	}
	// Closing twice must do no harm.
	r.close()
	r.close()
	// A call in the queue must be rejected, even if there is capacity now.
	if r.isLayer() {
		r.inner.Allow(1)
	}
	synctest.Wait()
	for _, w := range ready {
		if err := w.result(); !errors.Is(err, layer.ErrClosed) {
			failf("a Ready that waited for the closed service: %v, want ErrClosed", err)
		}
	}
	for _, p := range queued {
		mustf(r.checkRejected(p, layer.ErrClosed), "a call that waited in the closed queue")
	}
	for _, p := range inFlight {
		p.release()
		synctest.Wait()
		mustf(p.checkSuccess(r.bodies), "in flight when the service closed")
	}
	for range 3 {
		r.checkClosed()
	}
}

// callsBeforeClose makes the service unready before a check closes it. For a layer it also starts
// calls. It returns those in flight, and those that wait in the queue if there is one.
func (r *rig[Req, Rsp]) callsBeforeClose() (inFlight, queued []*probe[Req, Rsp]) {
	if !r.isLayer() {
		if r.fills {
			r.service.Fill(r.svc)
		}
		return nil, nil
	}
	// With a limit of one, Ready would wait for the slot of the call in flight.
	if r.Limit != 1 {
		inFlight = append(inFlight, r.call(r.ctx, plan{hold: true}))
	}
	if r.Queue == 0 {
		r.deny()
		return inFlight, nil
	}
	r.inner.Deny()
	for range r.Queue {
		queued = append(queued, r.start(r.ctx, plan{}))
	}
	synctest.Wait()
	return inFlight, queued
}

// checkClosed checks that a closed service says so in Ready, even if the context has ended, in Poll and
// in Call.
func (r *rig[Req, Rsp]) checkClosed() {
	canceled, cancel := context.WithCancelCause(r.ctx)
	cancel(errCancel)
	for _, ctx := range []context.Context{r.ctx, canceled} {
		if err := r.readyNow(ctx); !errors.Is(err, layer.ErrClosed) {
			failf("Ready of a closed service: %v, want ErrClosed", err)
		}
	}
	if err := r.poll(); !errors.Is(err, layer.ErrClosed) {
		failf("Poll of a closed service: %v, want ErrClosed", err)
	}
	mustf(r.checkRejected(r.call(r.ctx, plan{}), layer.ErrClosed), "Call of a closed service")
}

// bodyEnd is one way in which a response body ends, by its reader or by the inner service.
type bodyEnd struct {
	name    string
	bodyErr error
	reads   amount
	cancels bool // the check cancels the caller's ctx
	rereads bool // the body is read again after the cancellation
	closes  bool // the check closes the body
}

// amount tells how much of a response body is read before its end.
type amount int

const (
	nothing amount = iota
	some
	all
)

var bodyEnds = []bodyEnd{
	{name: "read to the end", reads: all},
	{name: "read to the end and closed", reads: all, closes: true},
	{name: "read to the end, canceled and closed", reads: all, cancels: true, closes: true},
	{name: "half read and closed", reads: some, closes: true},
	{name: "closed unread", closes: true},
	{name: "canceled unread", cancels: true},
	{name: "half read and canceled", reads: some, cancels: true},
	{name: "half read, canceled and closed", reads: some, cancels: true, closes: true},
	{name: "failed", bodyErr: errPlanned, reads: all},
	{name: "failed and closed", bodyErr: errPlanned, reads: all, closes: true},
	{name: "half read, canceled and read again", reads: some, cancels: true, rereads: true},
}

// endsOnce checks that the layer counts each response as ended exactly once. This must happen
// when the body ends, or when Call returns if the spec declares AtReturn. The inner service's
// context must not end before the body. The check is repeated for each element of bodyEnds.
func endsOnce[Req, Rsp any](e env[Req, Rsp]) {
	if e.isLayer() {
		endsWithoutBody(e)
	}
	if !e.bodies {
		return
	}
	for _, end := range bodyEnds {
		mustf(violationOf(func() { endsBy(e, end) }), "body %s", end.name)
	}
}

// endsWithoutBody checks that a response without a body has ended when Call returns.
func endsWithoutBody[Req, Rsp any](e env[Req, Rsp]) {
	r := e.rig()
	ended := r.endedNow()
	for range 3 {
		must(r.call(r.ctx, plan{noBody: true}).checkSuccess(false)) // not the body's content
	}
	if n := r.endedNow() - ended; r.Ended != nil && n != 3 {
		failf("3 responses without a body are counted as %d", n)
	}
	mustf(r.checkCapacity(), "after responses without a body")
}

// endedNow returns how many responses the layer has counted as ended, by the function Ended of its spec.
func (r *rig[Req, Rsp]) endedNow() int {
	if r.Ended == nil {
		return 0
	}
	return r.Ended()
}

// endsBy checks that calls are counted and keep their slots until their bodies end in the way that end
// describes.
func endsBy[Req, Rsp any](e env[Req, Rsp], end bodyEnd) {
	r := e.rig()
	ended := r.endedNow()
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	// Take all capacity, so that a slot that is freed too early is noticed.
	open := make([]*probe[Req, Rsp], max(r.Limit, 1))
	for i := range open {
		p := r.callToEnd(ctx, plan{keepsBody: true, bodyErr: end.bodyErr})
		if end.bodyErr != nil && errors.Is(p.err, end.bodyErr) {
			// The layer has read the body before it returned.
			if _, _, body := p.inner(); body == nil || !body.isClosed() {
				failf("the call fails as the body does, and the inner body was not closed")
			}
			must(r.checkCapacity())
			return
		}
		must(p.checkSuccess(false)) // not the body's content
		open[i] = p
	}
	r.checkOpen(open, ended)
	endBodies(r, open, end, cancel)
	if n := r.endedNow() - ended; r.Ended != nil && n != len(open) {
		failf("%d responses are counted as %d", len(open), n)
	}
	if r.isLayer() && r.inner.contextsLost() > 0 {
		must(errLostContext)
	}
	if r.Limit == 0 {
		must(r.checkServes())
		return
	}
	must(r.checkCapacity())
}

// checkOpen checks the calls in open, whose response bodies have not ended. If the spec declares
// AtReturn, the layer must have counted these responses as ended. Otherwise it must not have
// counted them, and the calls must still occupy their slots. ended is how many responses the layer
// had counted as ended before these calls.
func (r *rig[Req, Rsp]) checkOpen(open []*probe[Req, Rsp], ended int) {
	want := 0
	if r.AtReturn {
		want = len(open)
	}
	if n := r.endedNow() - ended; r.Ended != nil && n != want {
		failf("%d bodies are open, and %d responses are counted as ended, want %d", len(open), n, want)
	}
	if r.AtReturn || r.Limit == 0 {
		return
	}
	// With all slots taken, one more call must not be served.
	ctx, cancel := context.WithCancelCause(r.ctx)
	p := r.call(ctx, plan{})
	cancel(errCancel)
	synctest.Wait()
	if p.served() > 0 {
		failf("%d bodies are open, and one more call is admitted", len(open))
	}
}

// endBodies ends the response bodies in open, in the way that end describes. It checks that the
// inner service's bodies and contexts end as well.
func endBodies[Req, Rsp any](r *rig[Req, Rsp], open []*probe[Req, Rsp], end bodyEnd, cancel context.CancelCauseFunc) {
	for _, p := range open {
		switch end.reads { //nolint:exhaustive // nothing is read otherwise
		case some:
			p.readSome()
		case all:
			p.readAll()
		}
	}
	if end.cancels {
		cancel(errCancel)
		synctest.Wait()
	}
	for _, p := range open {
		if end.rereads && r.isLayer() {
			// Buffered bytes may follow, but the body must not seem complete.
			p.readAll()
			if p.readErr == nil && p.read != responseData(p.id) {
				failf("ctx ends the body like a complete one: %q", p.read)
			}
			p.readErr = nil
		}
		if end.closes {
			p.close()
			p.close()
		}
		if r.isLayer() {
			must(p.checkInnerEnd(end))
		}
	}
	synctest.Wait()
}

// checkInnerEnd returns an error unless the body and the inner service's context have ended in the
// way that end describes.
func (p *probe[Req, Rsp]) checkInnerEnd(end bodyEnd) error {
	ctx, _, body := p.inner()
	switch {
	case end.closes && !body.isClosed():
		return errors.New("the inner body was not closed")
	case end.cancels && ctx.Err() == nil:
		return errors.New("the inner ctx does not end")
	// When all of the body has been read, the layer may end the context itself, with another cause.
	case end.cancels && end.reads < all && !errors.Is(context.Cause(ctx), errCancel):
		return fmt.Errorf("the cause of the inner ctx is %v, want that of the caller's", context.Cause(ctx))
	case !errors.Is(p.readErr, end.bodyErr):
		return fmt.Errorf("reading ends with %v, want %v", p.readErr, end.bodyErr)
	}
	return nil
}
