package layer

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// IdleTimeout limits the silence within a response body: how long one Read may
// wait. The time between two Reads does not count, so slow readers are not
// affected. Use [Timeout] for bodies that nothing reads.
//
// Admission: none of its own; Ready is forwarded without a limit.
//
// Cancellation: the context of the request is canceled at the limit, with a
// cause that matches [ErrIdleTimeout]. It lives until the response ends. The
// body must observe the context, as those of net/http do.
//
// Body: limited if it is a field Body of type [io.ReadCloser] that the
// [Completion] observes. Streams of upgraded connections (an [io.Writer]) are
// not limited.
//
// Errors: a Read that waited too long fails with an [Error] of kind
// [ErrIdleTimeout]. Those of inner are returned unchanged.
//
// Cost: one allocation, and a timer that each Read sets and stops.
//
// With an after of 0, or for a response type without such a field, the layer
// does nothing; a negative after panics.
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
		return &idleTimeout[Req, Rsp]{Service: next, options: o, bodies: bodies, over: overrun{limit, after}}
	}
}

type idleTimeout[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	over   overrun
}

func (t *idleTimeout[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	r := &idling{over: &t.over}
	r.Init(ctx, 0, r.over)
	if rsp, err = callUntil(&r.requestContext, t.Service, req, &t.options, r); err != nil {
		return rsp, err
	}
	if b, ok := t.bodies.body(rsp).(*observedBody); ok {
		r.body, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}

func (t *idleTimeout[Req, Rsp]) Next() Service[Req, Rsp] { return t.Service }

func (t *idleTimeout[Req, Rsp]) Describe() Node { return t.over.node(t.over.after) }

// idling is a request under such a limit: its context, the Observer of its
// response and the reader of the body.
type idling struct {
	requestContext
	body io.ReadCloser
	over *overrun

	reads   sync.Mutex
	silence *time.Timer // nil before the first Read
	waits   bool        // a Read does
	late    int         // how many runs of the timer are still to come, of Reads that are over
}

func (r *idling) Read(p []byte) (int, error) {
	r.wait()
	n, err := r.body.Read(p)
	r.heard()
	if err != nil && err != io.EOF && r.Expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.over.wrap(err)
	}
	return n, err
}

func (r *idling) Close() error { return r.body.Close() }

// Pending reports what Read returns without waiting.
func (r *idling) Pending() (n int, eof bool) { return bodyPending(r.body) }

func (r *idling) End(err error) {
	r.heard()
	r.requestContext.End(err)
}

func (r *idling) wait() {
	r.reads.Lock()
	defer r.reads.Unlock()
	r.waits = true
	if r.silence == nil {
		r.silence = time.AfterFunc(r.over.after, r.silent)
	} else {
		r.silence.Reset(r.over.after)
	}
}

func (r *idling) heard() {
	r.reads.Lock()
	defer r.reads.Unlock()
	if r.waits && !r.silence.Stop() {
		r.late++
	}
	r.waits = false
}

// silent is run by the timer.
func (r *idling) silent() {
	r.reads.Lock()
	if r.late > 0 {
		r.late--
		r.reads.Unlock()
		return
	}
	r.waits = false
	r.reads.Unlock()
	defer r.Cancel(r.over)
	_ = panics.Contain(r.over.expired.inc)
}
