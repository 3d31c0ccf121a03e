package layer

import (
	"context"
	"errors"
	"sync/atomic"
)

// FallbackPolicy configures a [Fallback].
type FallbackPolicy[Req, Rsp any] struct {
	// Handle returns the substitute: a default, a cached response, or another error. It
	// must be set. It may read the headers of the replaced response, but not its closed
	// body. It must not send req on, because the request body may have been read. Use
	// [Failover] for that. If Handle returns a response, the request body is closed.
	Handle func(ctx context.Context, req Req, replaced Outcome[Rsp]) (Rsp, error)

	// FallbackIf reports whether the outcome o of class c must be replaced. By default
	// every failure, injected error and rejection is replaced. It is not called if the
	// caller's context has ended.
	FallbackIf func(c Class, o Outcome[Rsp]) bool
}

// Fallback returns the result of p.Handle, such as a cached response, in place of a failure or
// rejection by inner.
//
// Admission: every request is admitted. Ready is forwarded to inner.
//
// Cancellation: after the context of the request ended, its response is not replaced.
//
// Body: a failure that appears after the response headers is not replaced. The body of a
// replaced response is closed before Handle is called.
//
// Errors: an error of Handle is wrapped in an [Error] that also has the text of the
// replaced error. The Error is a rejection only if both errors are rejections.
//
// Cost: one call of the classifier per response. No allocation.
//
// It panics if p.Handle is nil.
func Fallback[Req, Rsp any](p FallbackPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(p.Handle != nil, "FallbackPolicy: Handle must be set")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &fallback[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, policy: p, requests: bodyAccessorOf[Req]()}
	}
}

type fallback[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   FallbackPolicy[Req, Rsp]
	requests bodyAccessor[Req]
	replaced atomic.Int64
}

func (f *fallback[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	classified := false
	defer f.dropUnless(&classified, &rsp, &err, nil)
	rsp, err = f.Service.Call(ctx, req)
	out := Outcome[Rsp]{Response: rsp, Err: err, Ended: f.bare && err == nil}
	replaced := ctx.Err() == nil && f.replaces(ctx, out)
	classified = true
	if !replaced {
		return rsp, err
	}
	if err == nil {
		f.discard(rsp)
	}
	f.replaced.Add(1)
	rsp, err = f.policy.Handle(ctx, req, out)
	if err != nil {
		return rsp, f.failed(ctx, out.Err, err)
	}
	if out.Err != nil {
		f.requests.closeBody(req) // inner may not have taken it
	}
	return rsp, nil
}

func (f *fallback[Req, Rsp]) replaces(ctx context.Context, out Outcome[Rsp]) bool {
	class := f.classOf(ctx, out)
	if f.policy.FallbackIf != nil {
		return f.policy.FallbackIf(class, out)
	}
	return class.IsFailure() || errors.Is(out.Err, ErrNotReady) || errors.Is(out.Err, ErrInjected)
}

// failed returns the error for the caller of the layer. The argument second is the error of
// Handle. The argument first is the replaced error, or nil if a response was replaced.
func (f *fallback[Req, Rsp]) failed(ctx context.Context, first, second error) error {
	e := &Error{Layer: "fallback", Target: f.target, Reason: "in place of a failed response"}
	if first != nil {
		e.Reason = "in place of (" + first.Error() + ")"
	}
	switch {
	case errors.Is(second, ErrNotReady) && !errors.Is(first, ErrNotReady):
		// The first service may have processed the request, so this must not match ErrNotReady.
		e.Err = context.Cause(ctx)
	case errors.Is(second, ErrClosed) && !errors.Is(first, ErrClosed):
		// The first service may become ready again.
		e.Kind = ErrNotReady
	case first != nil && errors.Is(second, first):
		return second // unchanged
	default:
		e.Err = second
		return e
	}
	e.Reason += ": " + second.Error()
	e.RetryAfter, _ = RetryAfter(second)
	return e
}

func (f *fallback[Req, Rsp]) Describe() Node {
	return Node{Name: "fallback", State: State{{"replaced", f.replaced.Load()}}}
}
