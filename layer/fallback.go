package layer

import (
	"context"
	"errors"
	"sync/atomic"
)

// FallbackPolicy configures a [Fallback].
type FallbackPolicy[Req, Rsp any] struct {
	// Handle returns the substitute: a default, a cached response, or another
	// error. It may read the headers of the replaced response, whose body is
	// closed. The request body may have been read in part. If Handle returns a
	// response instead of an error, the request body is closed, so Handle
	// cannot send the request on; use [Failover] for that. It must be set.
	Handle func(ctx context.Context, req Req, replaced Outcome[Rsp]) (Rsp, error)

	// FallbackIf reports whether an outcome is replaced; c is its class. The
	// default replaces every failure, injected faults included, and every
	// rejection. It is not called after the caller's context ended.
	FallbackIf func(c Class, o Outcome[Rsp]) bool
}

// Fallback responds in place of a service that failed or rejected the request.
//
// Admission: none of its own; Ready is forwarded to inner.
//
// Cancellation: nothing is replaced after the context of the request ended.
//
// Body: a response is replaced at its headers or not at all. The replaced
// response is closed before the substitute is requested.
//
// Errors: those of the substitute, in an [Error] with the replaced error. It is
// a rejection only if both rejected the request.
//
// Cost: classifying each response; no allocation.
func Fallback[Req, Rsp any](p FallbackPolicy[Req, Rsp], opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(p.Handle != nil, "FallbackPolicy: Handle must be set")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &fallback[Req, Rsp]{Service: next, options: o, policy: p, requests: bodyAccessorOf[Req]()}
	}
}

type fallback[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	policy   FallbackPolicy[Req, Rsp]
	requests bodyAccessor[Req]
	replaced atomic.Int64
}

func (f *fallback[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	classified := false
	defer func() {
		if !classified { // a panic, or Goexit
			f.drop(rsp, err)
		}
	}()
	rsp, err = f.Service.Call(ctx, req)
	out := Outcome[Rsp]{Response: rsp, Err: err}
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

// failed returns the error of a failed substitute. first is the error that it
// replaced, or nil.
func (f *fallback[Req, Rsp]) failed(ctx context.Context, first, second error) error {
	e := &Error{Layer: "fallback", Target: f.target, Reason: "in place of a failed response"}
	if first != nil {
		e.Reason = "in place of (" + first.Error() + ")"
	}
	switch {
	case errors.Is(second, ErrNotReady) && !errors.Is(first, ErrNotReady):
		// The first service may have done its work, so this must not match
		// ErrNotReady.
		e.Err = context.Cause(ctx)
	case errors.Is(second, ErrClosed) && !errors.Is(first, ErrClosed):
		// The first one may be back.
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

func (f *fallback[Req, Rsp]) Next() Service[Req, Rsp] { return f.Service }

func (f *fallback[Req, Rsp]) Describe() Node {
	return Node{Name: "fallback", State: State{{"replaced", f.replaced.Load()}}}
}
