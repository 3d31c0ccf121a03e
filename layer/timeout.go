package layer

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// Timeout limits the time from Call to the end of the response. It includes waiting in
// queues below, sending the request and reading the response.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: the context of the request gets a deadline, unless it has an earlier
// one. It ends when the response ends.
//
// Body: a Read after the deadline fails if the body observes the context, as the bodies
// of net/http do.
//
// Errors: after the limit, an error of inner or of reading the body is wrapped in an
// [Error] of kind [ErrTimeout]. Errors for other reasons, such as a cancellation by the
// caller, are returned unchanged.
//
// Cost: one allocation and one clock reading. If a layer below calls Done of the
// context, a timer and a channel are added.
//
// With 0 the layer does nothing. A negative value panics.
func Timeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Timeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, false, func() *timeLimit {
		l := &timeLimit{name: "timeout", target: o.target, what: "limit", is: ErrTimeout}
		l.expired.to = o.to.Timeouts.With("limit", "total")
		return l
	})
}

// ResponseHeaderTimeout limits the time from Call to the response headers. It includes waiting
// in queues below and sending the request body. It does not limit the response body.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: at the limit the context of the request is canceled with a cause that
// matches [ErrResponseHeaderTimeout]. It also ends when the response ends. It has no
// deadline, because a deadline could not be removed when the headers arrive.
//
// Body: not limited. A response that arrives just after the limit is closed.
//
// Errors: after the limit, an error of inner is wrapped in an [Error] of kind
// [ErrResponseHeaderTimeout].
//
// Cost: the same as of [Timeout].
//
// With 0 the layer does nothing. A negative value panics.
func ResponseHeaderTimeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("ResponseHeaderTimeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, true, func() *timeLimit {
		l := &timeLimit{
			name: "response header timeout", target: o.target, what: "limit", of: " on the response headers",
			is: ErrResponseHeaderTimeout,
		}
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
	hidden bool    // the limit applies until the response headers arrive
	over   overrun // the cause of every context that this layer cancels
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

// timeLimit has the name, texts and counter of a time limit, which all its requests share.
type timeLimit struct {
	name    string // the name of the layer
	target  string // the target of the stack
	what    string // the part of the error text before the duration
	of      string // the part of the error text after the duration
	is      error  // the kind of the error
	expired tally
}

// overrun is the error of an expired time limit. It is the cause of the contexts that
// it canceled.
type overrun struct {
	*timeLimit
	after time.Duration // the limit
}

func (o *overrun) Error() string { return o.what + " of " + o.after.String() + o.of + " exceeded" }
func (o *overrun) Unwrap() error { return o.is }

// wrap returns err, which occurred after the limit, in an Error.
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

// requestContext is the context of one request. It is also the Observer of the
// response, whose End cancels it.
type requestContext struct{ reqctx.Context }

// Data implements [Observer].
func (c *requestContext) Data(int) {}

// End cancels the context. It may be called more than once.
func (c *requestContext) End(error) { c.Release() }

// timed is the state of a request with a time limit, in one allocation: its context,
// the Observer of its response, and the reader of the response body.
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

// End cancels the context. It counts the limit if the limit ended the body.
func (r *timed) End(err error) {
	defer r.requestContext.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.Expired() {
		r.over.expired.inc()
	}
}

// Pending implements the method of the same name of observedBody.
func (r *timed) Pending() (n int, eof bool) { return bodyPending(r.ReadCloser) }

// callWithLimit calls next with the context of r, which it cancels when the response
// has ended. If hidden is true, the limit applies until the response headers arrive.
func callWithLimit[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], bodies bodyAccessor[Rsp], hidden bool,
) (rsp Rsp, err error) {
	returned := false
	defer func() {
		if !returned {
			defer r.requestContext.End(nil)
			opts.drop(rsp, err)
		}
	}()
	rsp, err = next.Call(&r.requestContext, req)
	if err == nil && hidden && !r.Lift() && bodies.closeBody(rsp) {
		// The body cannot be read, because its context has ended.
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
	returned = true
	if b := bodies.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
