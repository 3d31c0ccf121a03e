package layer

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
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
// context's Done, the cost is that of [context.WithTimeout].
//
// With an after of 0 the layer does nothing; a negative one panics.
func Timeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Timeout", after, 0)
	o := newOptions(opts)
	return limitTime[Req](after, o, hard, func() *timeLimit {
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
	return limitTime[Req](after, o, soft, func() *timeLimit {
		l := &timeLimit{name: "head timeout", target: o.target, what: "limit", of: " on the head", is: ErrResponseHeaderTimeout}
		l.expired.to = o.to.Timeouts.With("limit", "head")
		return l
	})
}

func limitTime[Req, Rsp any](
	after time.Duration, o options[Rsp], kind expiryKind, limit func() *timeLimit,
) Layer[Req, Rsp] {
	seam := seamOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if after == 0 {
			return next
		}
		return &timeout[Req, Rsp]{
			Service: next, options: o, seam: seam, kind: kind, over: overrun{limit(), after},
			mayAsk: kind == hard && !seam.has,
		}
	}
}

type timeout[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	seam bodySeam[Rsp]
	kind expiryKind
	over overrun // the cause of every context that this layer ends

	mayAsk bool        // requests may be called with a context of package context
	asks   atomic.Bool // the last ones looked at asked for Done
}

func (t *timeout[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if t.mayAsk && t.asks.Load() && rand.Uint32()%timeoutLook != 0 {
		return t.callAsked(ctx, req)
	}
	r := &timed{over: &t.over}
	r.init(ctx, t.over.after, &t.over, t.kind)
	rsp, err := callTimed(t.Service, req, r, &t.options, t.seam)
	if asked := r.state.Load() == expiryLive; t.mayAsk && asked != t.asks.Load() {
		t.asks.Store(asked)
	}
	return rsp, err
}

// timeoutLook is one in how many requests is looked at, whether it asks for
// Done still.
const timeoutLook = 256

// callAsked is Call where those below ask for Done, as what lies there did the
// last time: then a context of package context from the start is cheaper than
// one that turns into it.
func (t *timeout[Req, Rsp]) callAsked(ctx context.Context, req Req) (rsp Rsp, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.over.after, &t.over)
	handed := false
	defer func() {
		if !handed {
			defer cancel()
			t.drop(rsp, err)
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	if err != nil {
		if t.over.ended(ctx) {
			t.over.expired.inc()
			err = t.over.wrap(err)
		}
		return rsp, err
	}
	rsp = t.complete(ctx, rsp, timedAsked{&t.over, ctx, cancel})
	handed = true
	return rsp, nil
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

func (o *overrun) Error() string { return o.what + " of " + o.after.String() + o.of + " is over" }
func (o *overrun) Unwrap() error { return o.is }

// ended reports whether this limit is what ended ctx.
func (o *overrun) ended(ctx context.Context) bool {
	return ctx.Err() != nil && context.Cause(ctx) == error(o)
}

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

// timed is a request with a limit, in one allocation: its context, the Observer
// of its response, and the reader of the response's body.
type timed struct {
	expiry
	io.ReadCloser
	over *overrun
}

func (r *timed) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF && r.expired() { //nolint:errorlint // a Reader ends with just this value
		err = r.over.wrap(err)
	}
	return n, err
}

// End counts the limit if it was what ended the body.
func (r *timed) End(err error) {
	defer r.expiry.End(err)
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.expired() {
		r.over.expired.inc()
	}
}

// timedAsked is the Observer of a response with a limit and without a reader.
type timedAsked struct {
	over   *overrun
	ctx    context.Context //nolint:containedctx // has the reason for the end
	cancel context.CancelFunc
}

func (timedAsked) Data(int) {}

func (r timedAsked) End(err error) {
	defer r.cancel()
	if err != nil && !errors.Is(err, ErrBodyClosedEarly) && r.over.ended(r.ctx) {
		r.over.expired.inc()
	}
}

// callTimed calls next with the context of r, and lets that go when the
// response ended.
func callTimed[Req, Rsp any](
	next Service[Req, Rsp], req Req, r *timed, opts *options[Rsp], seam bodySeam[Rsp],
) (rsp Rsp, err error) {
	handed := false
	defer func() {
		if !handed {
			defer r.expiry.End(nil)
			opts.drop(rsp, err)
		}
	}()
	rsp, err = next.Call(&r.expiry, req)
	if err == nil && r.kind == soft && !r.lift() && seam.closeBody(rsp) {
		// Its context has ended, so it cannot be read.
		var none Rsp
		rsp, err = none, r.over
	}
	if err != nil {
		if r.expired() {
			r.over.expired.inc()
			err = r.over.wrap(err)
		}
		return rsp, err
	}
	rsp = opts.complete(&r.expiry, rsp, r)
	handed = true
	if b := seam.observed(rsp); b != nil {
		r.ReadCloser, b.ReadCloser = b.ReadCloser, r
	}
	return rsp, nil
}
