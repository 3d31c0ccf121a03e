package layer

import (
	"context"
	"errors"
	"sync/atomic"
)

// Span records one request for a [Trace]. Its methods are called in order and never
// concurrently, but possibly on different goroutines.
type Span[Rsp any] interface {
	// Head is called at most once, with the response when its headers have arrived. It must
	// not modify the response.
	Head(rsp Rsp)

	// End is called exactly once, also after a panic. c is the outcome's class. err is nil if the
	// response is complete, and otherwise the error of Call or of reading the body, such as
	// [ErrBodyClosedEarly].
	End(c Class, err error)
}

// Trace starts a [Span] for each request and reports the request's outcome to it. start returns the
// Span, and a context that carries it to the layers below:
//
//	func start(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
//		ctx, s := tracer.Start(ctx, req.Method)
//		return ctx, span{s}
//	}
//
// The context that start returns must derive from ctx; nil means ctx. If start returns a nil Span,
// the request is not traced. A nil start panics.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: a span ends when the response ends, see [WithCompletion].
//
// Errors: passed unchanged.
//
// Cost: one call of start, and one allocation for a traced request.
func Trace[Req, Rsp any](
	start func(ctx context.Context, req Req) (context.Context, Span[Rsp]), opts ...Option[Rsp],
) Layer[Req, Rsp] {
	check(start != nil, "Trace: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &traced[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, start: start}
	}
}

// Trace adds a [Trace] layer, which reports each request to the [Span] that start returns.
func (s Stack[Req, Rsp]) Trace(start func(ctx context.Context, req Req) (context.Context, Span[Rsp])) Stack[Req, Rsp] {
	return s.With("trace", Trace(start, s.opts...))
}

// traced is the service of [Trace].
type traced[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	start func(context.Context, Req) (context.Context, Span[Rsp])
}

// errNotReturned is the error with which a [Span] ends if Call or Read has panicked or called
// runtime.Goexit.
var errNotReturned = errors.New("the call panicked or ended its goroutine")

// Call sends req within a span, which ends with the response.
func (t *traced[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	// start is a function of the user. It may return no context, and no span if the request is not traced.
	inner, span := t.start(ctx, req)
	if inner == nil {
		inner = ctx
	}
	if span == nil {
		return t.Service.Call(inner, req)
	}
	e := &traceEnd[Rsp]{options: &t.options, ctx: ctx, span: span}
	returned := false
	// A panic must end the span, and discard a response that the caller will not get.
	defer func() {
		if !returned {
			defer e.end(Failure, errNotReturned)
			t.drop(rsp, err)
		}
	}()
	rsp, err = t.Service.Call(inner, req)
	if err != nil {
		class := t.classOf(ctx, Outcome[Rsp]{Err: err}) // may panic
		returned = true
		span.End(class, err)
		return rsp, err
	}
	span.Head(rsp)
	e.rsp = rsp
	rsp = t.complete(inner, rsp, e)
	returned = true
	return rsp, nil
}

// Describe returns a node without state.
func (t *traced[Req, Rsp]) Describe() Node { return Node{Name: "trace"} }

// traceEnd is the [Observer] of one response. It ends the span when the response ends.
type traceEnd[Rsp any] struct {
	*options[Rsp]
	ctx   context.Context //nolint:containedctx // the request's; distinguishes a canceled caller from a failed service
	span  Span[Rsp]
	rsp   Rsp
	ended atomic.Bool // the span has ended
}

// Data implements [Observer] and does nothing.
func (e *traceEnd[Rsp]) Data(int) {}

// End implements [Observer]. It classifies the outcome, which err completes, and ends the span.
func (e *traceEnd[Rsp]) End(err error) {
	class := Failure
	// A panic of the classifier must not keep the span.
	defer func() { e.end(class, err) }()
	class = e.classOf(e.ctx, Outcome[Rsp]{Response: e.rsp, Err: err, Ended: err == nil})
}

// end ends the span. Only the first call counts, because a response may end before a panic ends
// the Call.
func (e *traceEnd[Rsp]) end(c Class, err error) {
	if !e.ended.Swap(true) {
		e.span.End(c, err)
	}
}
