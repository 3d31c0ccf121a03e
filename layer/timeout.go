package layer

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// Timeout limits the whole life of a request: waiting in queues below, sending,
// and reading the response to its end.
//
// Admission: none of its own; Ready is forwarded without a limit.
//
// Cancellation: the context of the request gets a deadline, unless it has an
// earlier one. It lives until the response ends.
//
// Body: reading a body after the deadline fails if the body observes the
// context, as those of net/http do.
//
// Errors: after the limit, an error of inner or of reading the body is wrapped
// in an [Error] of kind [ErrTimeout]. Errors for other reasons, such as the
// caller's cancellation, are returned unchanged.
//
// Cost: one allocation and one clock reading. If a layer below asks for the
// context's Done, a timer and a channel are added.
//
// With an after of 0 the layer does nothing; a negative one panics.
func Timeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Timeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, false, func() *timeLimit {
		l := &timeLimit{name: "timeout", target: o.target, what: "limit", is: ErrTimeout}
		l.expired.to = o.to.Timeouts.With("limit", "total")
		return l
	})
}

// ResponseHeaderTimeout limits the time until Call returns the response
// headers, including time in queues below and sending the request body. The
// response body is not limited.
//
// Admission: none of its own; Ready is forwarded without a limit.
//
// Cancellation: the context of the request is canceled at the limit, with a
// cause that matches [ErrResponseHeaderTimeout]. It has no deadline, because a
// deadline could not be removed once the headers have arrived. It lives until
// the response ends.
//
// Body: not limited. A response that arrives just after the limit is closed.
//
// Errors: after the limit, an error of inner is wrapped in an [Error] of kind
// [ErrResponseHeaderTimeout].
//
// Cost: that of [Timeout].
//
// With an after of 0 the layer does nothing; a negative one panics.
func ResponseHeaderTimeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("ResponseHeaderTimeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, true, func() *timeLimit {
		l := &timeLimit{name: "response header timeout", target: o.target, what: "limit", of: " on the response headers", is: ErrResponseHeaderTimeout}
		l.expired.to = o.to.Timeouts.With("limit", "response_header")
		return l
	})
}

func limitTime[Req, Rsp any](after time.Duration, o options[Rsp], hidden bool, limit func() *timeLimit) Layer[Req, Rsp] {
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if after == 0 {
			return next
		}
		return &timeout[Req, Rsp]{Service: next, options: o, bodies: bodies, hidden: hidden, over: overrun{limit(), after}}
	}
}

type timeout[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	hidden bool    // the limit ends with the headers of the response
	over   overrun // the cause of every context that this layer ends
}

func (t *timeout[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	r := &timed{over: &t.over}
	if t.hidden {
		r.InitHidden(ctx, t.over.after, &t.over)
	} else {
		r.Init(ctx, t.over.after, &t.over)
	}
	return callWithLimit(t.Service, req, r, &t.options, t.bodies, t.hidden)
}

func (t *timeout[Req, Rsp]) Next() Service[Req, Rsp] { return t.Service }

func (t *timeout[Req, Rsp]) Describe() Node { return t.over.node(t.over.after) }

// timeLimit is what the requests under a limit have in common.
type timeLimit struct {
	name    string // of the layer
	target  string // what the layer works for
	what    string // the limit, in words: what stands before its length,
	of      string // and what stands behind it
	is      error  // its kind
	expired tally
}

// overrun is a limit that ran out: the cause of the contexts that it ended.
type overrun struct {
	*timeLimit
	after time.Duration // how long it was
}

func (o *overrun) Error() string { return o.what + " of " + o.after.String() + o.of + " exceeded" }
func (o *overrun) Unwrap() error { return o.is }

// wrap wraps an error that came after the limit.
func (o *overrun) wrap(err error) error {
	return &Error{Layer: o.name, Target: o.target, Kind: o.is, Waited: o.after, Err: err}
}

func (l *timeLimit) node(after time.Duration) Node {
	s := State{{"after", after}}
	if n := l.expired.n.Load(); n > 0 {
		s = append(s, Attr{"expired", n})
	}
	return Node{Name: strings.ReplaceAll(l.name, " ", "_"), State: s}
}

// requestContext is a context that is released as the Observer of a response.
type requestContext struct{ reqctx.Context }

// Data is part of [Observer].
func (c *requestContext) Data(int) {}

// End cancels the context. It may be called more than once.
func (c *requestContext) End(error) { c.Release() }

// timed is a request with a limit, in one allocation: its context, the Observer
// of its response, and the reader of the response's body.
type timed struct {
	requestContext
	io.ReadCloser
	over *overrun
}

func (r *timed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF && r.Expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.over.wrap(err)
	}
	return n, err
}

// End counts the limit if it was what ended the body.
func (r *timed) End(err error) {
	defer r.requestContext.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.Expired() {
		r.over.expired.inc()
	}
}

// Pending reports what Read returns without waiting.
func (r *timed) Pending() (n int, eof bool) { return bodyPending(r.ReadCloser) }

// callWithLimit calls next with the context of r, and releases it when the response
// has ended. A hidden limit ends with the headers of the response.
func callWithLimit[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], bodies bodyAccessor[Rsp], hidden bool,
) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			defer r.requestContext.End(nil)
			opts.drop(rsp, err)
		}
	}()
	rsp, err = next.Call(&r.requestContext, req)
	if err == nil && hidden && !r.Lift() && bodies.closeBody(rsp) {
		// Its context has ended, so it cannot be read.
		var zero Rsp
		rsp, err = zero, r.over
	}
	if err != nil {
		if r.Expired() {
			r.over.expired.inc()
			err = r.over.wrap(err)
		}
		return rsp, err
	}
	rsp = opts.complete(&r.requestContext, rsp, r)
	handed = true
	if b := bodies.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
