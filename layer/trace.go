package layer

import (
	"context"
	"errors"
)

// Span follows one request through a [Trace]. Its methods are called in order
// and never side by side, though not always by the same goroutine.
type Span[Rsp any] interface {
	// Head is called at most once: when the head of a response is there, which
	// it must not change.
	Head(rsp Rsp)

	// End is called exactly once: when the response is complete (with a nil
	// err), when it broke off or was closed before its end ([ErrBodyClosedEarly]), when
	// an error came in its place (a refusal included, which is [Ignorable]), or
	// when the call panicked.
	End(c Class, err error)
}

// Trace starts a span for each request and tells it what becomes of it. It is
// the place where a tracer is connected: start returns the context that the
// layers below work with, which carries the span to where it is needed (a
// header to be written, another Trace, a span's child), through queues and
// retries.
//
//	func start(ctx context.Context, req *http.Request) (context.Context, layer.Span[*http.Response]) {
//		ctx, s := tracer.Start(ctx, req.Method)
//		return ctx, span{s}
//	}
//
// start is safe for concurrent use. The context that it returns must come from
// the one that it is given; a nil one stands for that. A nil Span is a request
// that is not traced.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: a span ends when the response ended, see [WithCompletion].
//
// Errors: passed as they are.
//
// Cost: that of start, and one allocation for a request that is traced; for
// one that is not, start alone.
//
// With a nil start the layer does nothing.
func Trace[Req, Rsp any](
	start func(ctx context.Context, req Req) (context.Context, Span[Rsp]), opts ...Option[Rsp],
) Layer[Req, Rsp] {
	check(start != nil, "Trace: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &traced[Req, Rsp]{Service: next, options: o, start: start}
	}
}

type traced[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	start func(context.Context, Req) (context.Context, Span[Rsp])
}

// errUnwound is the end of a span whose call did not return.
var errUnwound = errors.New("the call did not return: it panicked, or ended its goroutine")

func (t *traced[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	inner, span := t.start(ctx, req)
	if inner == nil {
		inner = ctx
	}
	if span == nil {
		return t.Service.Call(inner, req)
	}
	handed := false
	defer func() {
		if !handed {
			defer span.End(Failure, errUnwound)
			t.drop(rsp, err)
		}
	}()
	rsp, err = t.Service.Call(inner, req)
	if err != nil {
		class := t.judge(ctx, Outcome[Rsp]{Err: err}) // which may panic, too
		handed = true
		span.End(class, err)
		return rsp, err
	}
	span.Head(rsp)
	rsp = t.complete(inner, rsp, &traceEnd[Rsp]{options: &t.options, ctx: ctx, span: span, rsp: rsp})
	handed = true
	return rsp, nil
}

func (t *traced[Req, Rsp]) Next() Service[Req, Rsp] { return t.Service }

func (t *traced[Req, Rsp]) Describe() Node { return Node{Name: "trace"} }

// traceEnd is the Observer of one response.
type traceEnd[Rsp any] struct {
	*options[Rsp]
	ctx  context.Context //nolint:containedctx // the request's: it tells a caller who left from inner that failed
	span Span[Rsp]
	rsp  Rsp
}

func (e *traceEnd[Rsp]) Data(int) {}

func (e *traceEnd[Rsp]) End(err error) {
	class := Failure
	// A classifier that panics must not leave the span open for ever.
	defer func() { e.span.End(class, err) }()
	class = e.judge(e.ctx, Outcome[Rsp]{Response: e.rsp, Err: err, Ended: err == nil})
}
