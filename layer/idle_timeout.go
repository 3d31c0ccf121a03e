package layer

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/panics"
)

// IdleTimeout limits how long a single Read of a response body may wait, to d. The time between
// two Reads does not count, so slow readers are not affected. Use [Timeout] if you also want to
// limit bodies that are not read at all.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: at the limit the request context is canceled with a cause that matches
// [ErrIdleTimeout]. The context also ends with the response. The Read must return when the
// context ends, as net/http's bodies do.
//
// Body: the limit applies to a field Body of type [io.ReadCloser] that the [Completion] observes.
// It does not apply to upgraded connections, that is, to a Body that is also an [io.Writer].
//
// Errors: a Read that waited too long returns an [Error] of kind [ErrIdleTimeout]. Errors of
// inner are returned unchanged.
//
// Cost: one allocation, and a timer that each Read sets and stops.
//
// If the limit is 0, or the response type lacks such a field Body, the layer does nothing. A
// negative limit panics.
func IdleTimeout[Req, Rsp any](d time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("IdleTimeout", d, 0)
	o := newOptions(opts)
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if d == 0 || !bodies.has {
			return next
		}
		limit := &timeLimit{name: "idle timeout", target: o.target, prefix: "limit", suffix: " on silence", kind: ErrIdleTimeout}
		limit.expired.counter = o.instruments.Timeouts.With("limit", "idle")
		return &idleTimeout[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, bodies: bodies, cause: overrun{limit, d}}
	}
}

// IdleTimeout adds an [IdleTimeout] layer, which limits how long a single Read of a response body
// may wait.
func (s Stack[Req, Rsp]) IdleTimeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("idle_timeout", IdleTimeout[Req](limit, s.opts...))
}

// idleTimeout is the service of [IdleTimeout].
type idleTimeout[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	cause  overrun
}

// Call sends req with a context that ends when the response body has been idle for too long.
func (t *idleTimeout[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	// 0 means no time limit. The context is canceled by the timer of Read.
	r := &idling{cause: &t.cause}
	r.Init(ctx, 0, nil)
	// r is the observer of the response, and ends its context with it.
	if rsp, err = callUntil(&r.Context, t.Service, req, &t.options, r); err != nil {
		return rsp, err
	}
	// Puts r between the observers and the body, so that it measures each Read, without another wrapper.
	if b, ok := t.bodies.body(rsp).(*observedBody); ok {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}

// Describe returns the time limit and how often it expired.
func (t *idleTimeout[Req, Rsp]) Describe() Node { return t.cause.node(t.cause.duration) }

// idling is all that a request with an idle timeout needs, in one allocation: its context, the
// [Observer] of its response, and the body that measures each Read.
type idling struct {
	requestContext
	innerBody
	cause *overrun

	reads         sync.Mutex
	timer         *time.Timer // nil before the first Read
	reading       bool        // a Read is in progress
	staleExpiries int         // expirations after the Read returned, for which expire must do nothing
}

// Read reads with the limit on its duration.
func (r *idling) Read(p []byte) (int, error) {
	r.startRead()
	n, err := r.ReadCloser.Read(p)
	r.finishRead()
	// Only an error that comes from this limit is wrapped.
	if err != nil && err != io.EOF && r.Cause() == error(r.cause) { //nolint:errorlint // a Reader ends with just this value
		err = r.cause.wrap(err)
	}
	return n, err
}

// End implements [Observer]. It stops the timer and ends the context.
func (r *idling) End(err error) {
	r.finishRead()
	r.requestContext.End(err)
}

// startRead starts the limit for a Read.
func (r *idling) startRead() {
	r.reads.Lock()
	defer r.reads.Unlock()
	// expire reads it: only during a Read does silence count.
	r.reading = true
	if r.timer == nil {
		r.timer = time.AfterFunc(r.cause.duration, r.expire)
	} else {
		r.timer.Reset(r.cause.duration)
	}
}

// finishRead stops the limit. If it is too late to stop the timer, the call of expire that follows must
// do nothing.
func (r *idling) finishRead() {
	r.reads.Lock()
	defer r.reads.Unlock()
	// Stop returns false if the timer has expired, so that expire will run.
	if r.reading && !r.timer.Stop() {
		r.staleExpiries++
	}
	r.reading = false
}

// expire is the timer's function. It cancels the request, unless the Read for which the timer was set
// has returned meanwhile.
func (r *idling) expire() {
	r.reads.Lock()
	if r.staleExpiries > 0 {
		r.staleExpiries--
		r.reads.Unlock()
		return
	}
	r.reading = false
	r.reads.Unlock()
	// Deferred, so that the request is canceled even if the metric panics.
	defer r.Cancel(r.cause)
	_ = panics.Contain(r.cause.expired.inc)
}
