package layer

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// Timeout limits the time from Call to the end of the response. This includes waiting in queues
// below, sending the request and reading the response. With [WithoutUploadTime] it counts from
// the end of the request body.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: the request context gets a deadline, unless its own is earlier. With
// [WithoutUploadTime] it gets none, but still ends at the limit. It ends when the response ends.
//
// Body: a Read after the deadline fails if the body observes the context, as net/http's bodies
// do.
//
// Errors: after the limit, an error of inner or of reading the body is wrapped in an [Error] of
// kind [ErrTimeout]. Errors for other reasons, such as a cancellation by the caller, are returned
// unchanged.
//
// Cost: one allocation and one clock reading. If a layer below calls Done of the context, the
// request also needs a timer and a channel.
//
// If limit is 0, the layer does nothing. A negative value panics.
func Timeout[Req, Rsp any](limit time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Timeout", limit, 0)
	o := newOptions(opts)
	const hidden = false
	return limitTime[Req](limit, o, hidden, func() *timeLimit {
		l := &timeLimit{name: "timeout", target: o.target, prefix: "limit", kind: ErrTimeout}
		l.expired.counter = o.instruments.Timeouts.With("limit", "total")
		return l
	})
}

// Timeout adds a [Timeout] layer, which limits the time until the end of the response.
func (s Stack[Req, Rsp]) Timeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("timeout", Timeout[Req](limit, s.opts...))
}

// ResponseHeaderTimeout limits the time for which a request waits for its response headers. This
// includes waiting in queues below. It does not include the upload: while an endpoint of package
// httplayer waits for a piece of the request body, the limit does not run. It starts from zero with
// each piece, and whenever a server that reads slowly accepts bytes. In effect it counts from the end
// of the request body, or from the last bytes that the server accepted, as proxy_send_timeout and
// proxy_read_timeout of nginx do. With [WithUploadTime] it counts from Call.
//
// Admission: every request is admitted. Ready is forwarded without a limit.
//
// Cancellation: at the limit the request context is canceled with a cause that matches
// [ErrResponseHeaderTimeout]. The context also ends when the response ends. It carries no
// deadline, because a deadline could not be removed when the headers arrive.
//
// Body: not limited. A response that arrives just after the limit is closed.
//
// Errors: after the limit, an error of inner is wrapped in an [Error] of kind
// [ErrResponseHeaderTimeout].
//
// Cost: as for [Timeout]. If limit is 0, the layer does nothing. A negative value panics.
func ResponseHeaderTimeout[Req, Rsp any](limit time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("ResponseHeaderTimeout", limit, 0)
	o := newOptions(opts)
	const hidden = true
	return limitTime[Req](limit, o, hidden, func() *timeLimit {
		l := &timeLimit{
			name: "response header timeout", target: o.target, prefix: "limit", suffix: " on the response headers",
			kind: ErrResponseHeaderTimeout,
		}
		l.expired.counter = o.instruments.Timeouts.With("limit", "response_header")
		return l
	})
}

// ResponseHeaderTimeout adds a [ResponseHeaderTimeout] layer, which limits the time until the
// response headers arrive.
func (s Stack[Req, Rsp]) ResponseHeaderTimeout(limit time.Duration) Stack[Req, Rsp] {
	return s.With("response_header_timeout", ResponseHeaderTimeout[Req](limit, s.opts...))
}

// limitTime returns the layer Timeout, or ResponseHeaderTimeout if hidden is true, with the time limit
// d: see timeout.hidden. limit makes the texts and the counter of the time limit, for each service to
// which the layer is applied.
func limitTime[Req, Rsp any](d time.Duration, o options[Rsp], hidden bool, limit func() *timeLimit) Layer[Req, Rsp] {
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if d == 0 {
			return next
		}
		return &timeout[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, bodies: bodies, hidden: hidden, cause: overrun{limit(), d},
		}
	}
}

// timeout is the service of [Timeout] and [ResponseHeaderTimeout].
type timeout[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	bodies bodyAccessor[Rsp]
	hidden bool    // the limit ends when the response headers arrive, and the context has no deadline
	cause  overrun // the cause of every context that this layer cancels
}

// Call sends req with a context that ends at the time limit. The options decide whether the limit ends
// with the header, and whether it includes the time to send the request body.
func (t *timeout[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	r := new(timed)
	switch {
	case t.afterBody: // Timeout with WithoutUploadTime
		r.InitPausable(ctx, t.cause.duration, &t.cause)
	case !t.hidden: // Timeout
		r.Init(ctx, t.cause.duration, &t.cause)
	case t.uploadTime: // ResponseHeaderTimeout with WithUploadTime
		r.InitHidden(ctx, t.cause.duration, &t.cause)
	default: // ResponseHeaderTimeout: an endpoint pauses the limit while it waits for the request body
		r.InitPausable(ctx, t.cause.duration, &t.cause)
	}
	return callWithLimit(t.Service, req, r, &t.options, t.bodies, t.hidden)
}

// Describe returns the time limit and how often it expired.
func (t *timeout[Req, Rsp]) Describe() Node { return t.cause.node(t.cause.duration) }

// timeLimit holds the name, texts and counter for one time limit. All requests of the layer share
// it.
type timeLimit struct {
	name    string // the name of the layer
	target  string // the target of the stack
	prefix  string // the part of the error text before the duration
	suffix  string // the part of the error text after the duration
	kind    error  // the kind of the error
	expired tally  // counts the requests that the limit ended
}

// overrun is the cause with which a time limit cancels a request's context, and so part of the
// request's error.
type overrun struct {
	*timeLimit
	duration time.Duration // the length of the limit
}

// Error names the limit and its duration.
func (o *overrun) Error() string {
	return o.prefix + " of " + o.duration.String() + o.suffix + " exceeded"
}

func (o *overrun) Unwrap() error { return o.kind }

// wrap returns an [Error] with the cause err, which occurred because the limit expired.
func (o *overrun) wrap(err error) error {
	return &Error{Layer: o.name, Target: o.target, Kind: o.kind, Waited: o.duration, Err: err}
}

// node returns the node of a layer with this limit, for Describe.
func (l *timeLimit) node(d time.Duration) Node {
	s := State{{"after", d}}
	if n := l.expired.n.Load(); n > 0 {
		s = append(s, Attr{"expired", n})
	}
	return Node{Name: strings.ReplaceAll(l.name, " ", "_"), State: s}
}

// requestContext is the context of a single request. It is also the [Observer] of its response:
// End cancels the context.
type requestContext struct{ reqctx.Context }

// Data implements [Observer] and does nothing.
func (c *requestContext) Data(int) {}

// End cancels the context when the response has ended. It may be called more than once.
func (c *requestContext) End(error) { c.Release() }

// timed is all that a request with a time limit needs, in one allocation: its context, the [Observer]
// of its response, and the reader of the response body. If the limit expires, the context's cause is an
// *overrun.
type timed struct {
	requestContext
	innerBody
}

// exceeded returns the *overrun of the limit that has expired. It must be called only after the limit
// has expired.
func (r *timed) exceeded() *overrun {
	cause, _ := r.Cause().(*overrun) //nolint:errorlint // not wrapped
	return cause
}

// Read reads the body. It adds the exceeded limit to an error after the limit.
func (r *timed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF && r.Expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.exceeded().wrap(err)
	}
	return n, err
}

// End cancels the context when the response has ended. If reading the body failed after the time
// limit, End counts the request as expired.
func (r *timed) End(err error) {
	defer r.requestContext.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.Expired() {
		r.exceeded().expired.inc()
	}
}

// callWithLimit sends req to next with r's context, and ends the context when the response has ended.
// If hidden is true, the limit applies only until the response headers arrive; r must then have been
// initialized by InitHidden or InitPausable (see [reqctx.Context]).
func callWithLimit[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], bodies bodyAccessor[Rsp], hidden bool,
) (rsp Rsp, err error) {
	returned := false // for dropUnless: the caller gets rsp
	defer opts.dropUnless(&returned, &rsp, &err, &r.requestContext)
	rsp, err = next.Call(&r.Context, req)
	if err == nil && hidden && !r.Lift() && bodies.closeBody(rsp) {
		// The response is dropped, because its body cannot be read after the end of its
		// context.
		var zero Rsp
		rsp, err = zero, r.exceeded()
	}
	if err != nil {
		if r.Expired() {
			r.exceeded().expired.inc()
			err = r.exceeded().wrap(err)
		}
		return rsp, err
	}
	rsp = opts.complete(&r.Context, rsp, r)
	returned = true
	// Puts r between the observers and the body, without another wrapper around the body.
	if b := bodies.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
