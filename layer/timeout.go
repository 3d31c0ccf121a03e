package layer

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// Timeout limits the time from Call to the end of the response. This includes waiting in
// queues below, sending the request and reading the response.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: the context of the request gets a deadline, unless it has an earlier one.
// The context ends when the response ends.
//
// Body: a Read after the deadline fails if the body observes the context, as the bodies of
// net/http do.
//
// Errors: after the limit, an error of inner or of reading the body is wrapped in an
// [Error] of kind [ErrTimeout]. Errors for other reasons, such as a cancellation by the
// caller, are returned unchanged.
//
// Cost: one allocation and one clock reading. If a layer below calls Done of the context,
// the request also needs a timer and a channel.
//
// If the argument after is 0, the layer does nothing. A negative value panics.
func Timeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Timeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, false, func() *timeLimit {
		l := &timeLimit{name: "timeout", target: o.target, what: "limit", is: ErrTimeout}
		l.expired.to = o.to.Timeouts.With("limit", "total")
		return l
	})
}

// ResponseHeaderTimeout limits the time from Call to the response headers. This includes
// waiting in queues below and sending the request body. The response body is not limited.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: at the limit the context of the request is canceled with a cause that
// matches [ErrResponseHeaderTimeout]. The context also ends when the response ends. It has
// no deadline, because a deadline could not be removed when the headers arrive.
//
// Body: not limited. A response that arrives just after the limit is closed.
//
// Errors: after the limit, an error of inner is wrapped in an [Error] of kind
// [ErrResponseHeaderTimeout].
//
// Cost: as for [Timeout].
//
// If the argument after is 0, the layer does nothing. A negative value panics.
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
		return &timeout[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, bodies: bodies, hidden: hidden, over: overrun{limit(), after},
		}
	}
}

type timeout[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	hidden bool    // the limit ends when the response headers arrive, and the context has no deadline
	over   overrun // the cause of every context that this layer cancels
}

func (t *timeout[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	r := new(timed)
	if t.hidden {
		r.InitHidden(ctx, t.over.after, &t.over)
	} else {
		r.Init(ctx, t.over.after, &t.over)
	}
	return callWithLimit(t.Service, req, r, &t.options, t.bodies, t.hidden)
}

func (t *timeout[Req, Rsp]) Describe() Node { return t.over.node(t.over.after) }

// timeLimit has the name, the texts and the counter of one time limit. All requests of the
// layer share it.
type timeLimit struct {
	name    string // the name of the layer
	target  string // the target of the stack
	what    string // the part of the error text before the duration
	of      string // the part of the error text after the duration
	is      error  // the kind of the error
	expired tally  // counts the requests that the limit ended
}

// overrun is the error of a request that exceeded its time limit. It is also the cause with
// which the context of the request is canceled.
type overrun struct {
	*timeLimit
	after time.Duration // the length of the limit
}

func (o *overrun) Error() string { return o.what + " of " + o.after.String() + o.of + " exceeded" }
func (o *overrun) Unwrap() error { return o.is }

// wrap returns an [Error] with the cause err, which occurred because the limit has expired.
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

// requestContext is the context of one request. It is also the [Observer] of its response:
// End cancels the context.
type requestContext struct{ reqctx.Context }

// Data does nothing. It is part of [Observer].
func (c *requestContext) Data(int) {}

// End cancels the context when the response has ended. It may be called more than once.
func (c *requestContext) End(error) { c.Release() }

// timed is the state of one request with a time limit. It is the context of the request,
// the [Observer] of its response, and the reader of the response body, in one allocation.
// If the time limit expires, the cause of the context is an *overrun.
type timed struct {
	requestContext
	innerBody
}

// over returns the *overrun with which the time limit canceled the context. It must only be
// called if the limit has expired.
func (r *timed) over() *overrun {
	over, _ := r.Cause().(*overrun) //nolint:errorlint // not wrapped
	return over
}

func (r *timed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF && r.Expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.over().wrap(err)
	}
	return n, err
}

// End cancels the context when the response has ended. If reading the body failed and the time
// limit has expired, End counts the request as expired.
func (r *timed) End(err error) {
	defer r.requestContext.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.Expired() {
		r.over().expired.inc()
	}
}

// callWithLimit sends req to the service next with the context in r, and cancels this context when
// the response has ended. If the argument hidden is true, the time limit applies only until the
// response headers arrive. The caller must then have initialized r by InitHidden of
// [reqctx.Context].
func callWithLimit[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], bodies bodyAccessor[Rsp], hidden bool,
) (rsp Rsp, err error) {
	returned := false
	defer opts.dropUnless(&returned, &rsp, &err, &r.requestContext)
	rsp, err = next.Call(&r.Context, req)
	if err == nil && hidden && !r.Lift() && bodies.closeBody(rsp) {
		// The response is dropped, because its body cannot be read after the end of its
		// context.
		var zero Rsp
		rsp, err = zero, r.over()
	}
	if err != nil {
		if r.Expired() {
			r.over().expired.inc()
			err = r.over().wrap(err)
		}
		return rsp, err
	}
	rsp = opts.complete(&r.Context, rsp, r)
	returned = true
	if b := bodies.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
