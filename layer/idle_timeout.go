package layer

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// IdleTimeout limits the time for which one Read of a response body may wait. The argument after is
// the limit. The time between two Reads does not count, so slow readers are not affected. Use
// [Timeout] to limit the time of bodies that are not read at all.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: at the limit the context of the request is canceled with a cause that
// matches [ErrIdleTimeout]. The context also ends with the response. The Read must return
// when the context ends, as the bodies of net/http do.
//
// Body: the limit applies to a field Body of type [io.ReadCloser] that the [Completion] observes.
// It does not apply to upgraded connections, that is, to a Body that is also an [io.Writer].
//
// Errors: a Read that waited too long returns an [Error] of kind [ErrIdleTimeout]. Errors
// of inner are returned unchanged.
//
// Cost: one allocation, and a timer that each Read sets and stops.
//
// If the limit is 0, or the response type has no such field Body, the layer does nothing. A
// negative limit panics.
func IdleTimeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("IdleTimeout", after, 0)
	o := newOptions(opts)
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if after == 0 || !bodies.has {
			return next
		}
		limit := &timeLimit{name: "idle timeout", target: o.target, what: "limit", of: " on silence", is: ErrIdleTimeout}
		limit.expired.to = o.to.Timeouts.With("limit", "idle")
		return &idleTimeout[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, bodies: bodies, over: overrun{limit, after}}
	}
}

type idleTimeout[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	over   overrun
}

func (t *idleTimeout[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	r := &idling{over: &t.over}
	r.Init(ctx, 0, nil)
	if rsp, err = callUntil(&r.Context, t.Service, req, &t.options, r); err != nil {
		return rsp, err
	}
	if b, ok := t.bodies.body(rsp).(*observedBody); ok {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}

func (t *idleTimeout[Req, Rsp]) Describe() Node { return t.over.node(t.over.after) }

// idling is the state of one request with an idle timeout. It is the context of the
// request, the [Observer] of the response, and the body that the caller reads.
type idling struct {
	requestContext
	innerBody
	over *overrun

	reads   sync.Mutex
	timer   *time.Timer // nil before the first Read
	reading bool        // a Read is in progress
	late    int         // expirations after the Read returned, for which expire must do nothing
}

func (r *idling) Read(p []byte) (int, error) {
	r.startRead()
	n, err := r.ReadCloser.Read(p)
	r.finishRead()
	if err != nil && err != io.EOF && r.Cause() == error(r.over) { //nolint:errorlint // a Reader ends with just this value
		err = r.over.wrap(err)
	}
	return n, err
}

func (r *idling) End(err error) {
	r.finishRead()
	r.requestContext.End(err)
}

func (r *idling) startRead() {
	r.reads.Lock()
	defer r.reads.Unlock()
	r.reading = true
	if r.timer == nil {
		r.timer = time.AfterFunc(r.over.after, r.expire)
	} else {
		r.timer.Reset(r.over.after)
	}
}

func (r *idling) finishRead() {
	r.reads.Lock()
	defer r.reads.Unlock()
	if r.reading && !r.timer.Stop() {
		r.late++
	}
	r.reading = false
}

// expire cancels the request, unless the Read for which the timer was set has returned. The timer
// calls expire.
func (r *idling) expire() {
	r.reads.Lock()
	if r.late > 0 {
		r.late--
		r.reads.Unlock()
		return
	}
	r.reading = false
	r.reads.Unlock()
	defer r.Cancel(r.over)
	_ = panics.Contain(r.over.expired.inc)
}
