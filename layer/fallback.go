package layer

import (
	"context"
	"errors"
	"sync/atomic"
)

// FallbackPolicy configures a [Fallback].
type FallbackPolicy[Req, Rsp any] struct {
	// Handle returns the substitute: a default, a cached response, or another error. It must be
	// set. It may read the replaced response's headers, but not its closed body. It must not send
	// req on, because its body may have been read. To use other endpoints instead, rely on a
	// balancer with priorities: it sends requests to the next ones while the first are not
	// healthy. If Handle returns a response, the request body is closed.
	Handle func(ctx context.Context, req Req, replaced Outcome[Rsp]) (Rsp, error)

	// FallbackIf reports whether the outcome o, which is of class c, must be replaced. By default
	// every failure, injected error and rejection is replaced. It is not called if the caller's
	// context has ended.
	FallbackIf func(c Class, o Outcome[Rsp]) bool
}

// Fallback returns the result of p.Handle, such as a cached response, in place of a failure or
// rejection by inner.
//
// Admission: every request is admitted. Ready is forwarded to inner.
//
// Cancellation: once the request context has ended, its response is not replaced.
//
// Body: a failure that appears after the response headers is not replaced. A replaced response's
// body is closed before Handle is called.
//
// Errors: an error of Handle is wrapped in an [Error] that also contains the replaced error's
// text. The Error is a rejection only if both errors are rejections.
//
// Cost: one call of the classifier per response, without an allocation.
//
// It panics if p.Handle is nil.
func Fallback[Req, Rsp any](p FallbackPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(p.Handle != nil, "FallbackPolicy: Handle must be set")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &fallback[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, policy: p, requests: bodyAccessorOf[Req]()}
	}
}

// Fallback adds a [Fallback] layer, which returns a substitute for a failure or a rejection.
func (s Stack[Req, Rsp]) Fallback(p FallbackPolicy[Req, Rsp]) Stack[Req, Rsp] {
	return s.With("fallback", Fallback(p, s.opts...))
}

// fallback is the service of [Fallback].
type fallback[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	policy   FallbackPolicy[Req, Rsp]
	requests bodyAccessor[Req] // finds a request's body, to close it
	replaced atomic.Int64      // the number of outcomes that were replaced
}

// Call sends req. If the policy selects the outcome, it is replaced by what the policy's Handle
// returns.
func (f *fallback[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	classified := false // as long as it is false, a panic discards the response
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

// replaces reports whether Handle should replace the outcome.
func (f *fallback[Req, Rsp]) replaces(ctx context.Context, out Outcome[Rsp]) bool {
	class := f.classOf(ctx, out)
	if f.policy.FallbackIf != nil {
		return f.policy.FallbackIf(class, out)
	}
	return class.IsFailure() || errors.Is(out.Err, ErrNotReady) || errors.Is(out.Err, ErrInjected)
}

// failed returns the error for the layer's caller when Handle itself has returned an error, second.
// first is the error that Handle should have replaced, or nil if that was a response. The result is a
// rejection only if both are.
func (f *fallback[Req, Rsp]) failed(ctx context.Context, first, second error) error {
	e := &Error{Layer: "fallback", Target: f.target, Reason: "in place of a failed response"}
	if first != nil {
		e.Reason = "in place of (" + first.Error() + ")"
	}
	switch {
	case errors.Is(second, ErrNotReady) && !errors.Is(first, ErrNotReady):
		// The first service may have processed the request, so this must not match ErrNotReady, and cannot wrap second.
		// The cause is nil unless the caller has given up.
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

// Describe returns how many responses were replaced.
func (f *fallback[Req, Rsp]) Describe() Node {
	return Node{Name: "fallback", State: State{{"replaced", f.replaced.Load()}}}
}
