package layer

import (
	"context"
	"time"
)

// Timeout bounds the whole life of a request: waiting in queues below,
// sending, and reading the response to its end.
//
// Admission: none of its own; Ready is forwarded and not bounded.
//
// Cancellation: the context of the request gains a deadline, never a later
// one than it had. The context stays alive until the response ended.
//
// Body: reading a body after the deadline fails.
//
// Errors: once the limit has run out, what inner returned as an error comes
// back in an [Error] of kind [ErrTimeout]. An error that inner returned for
// another reason, the caller's own cancellation included, is passed as it is.
//
// Cost: one context with a timer.
//
// An after of 0 or less means no limit.
func Timeout[Req, Rsp any](after time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if after <= 0 {
			return next
		}
		return &timeout[Req, Rsp]{
			Service: next,
			options: o,
			after:   after,
			over:    &kind{"limit of " + after.String() + " is over", ErrTimeout},
		}
	}
}

type timeout[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	after time.Duration
	over  error // the cause of the contexts that this layer ends
}

func (t *timeout[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.after, t.over)
	handed := false
	defer func() {
		if !handed {
			cancel()
		}
	}()
	rsp, err := t.Service.Call(ctx, req)
	if err != nil {
		if context.Cause(ctx) == t.over {
			err = &Error{Layer: "timeout", Target: t.target, Kind: ErrTimeout, Waited: t.after, Err: err}
		}
		return rsp, err
	}
	handed = true
	return t.complete(ctx, rsp, release(cancel)), nil
}

func (t *timeout[Req, Rsp]) Next() Service[Req, Rsp] { return t.Service }

func (t *timeout[Req, Rsp]) Describe() Node {
	return Node{Name: "timeout", State: State{{"after", t.after}}}
}

// release is a context to be let go when the response ended.
type release context.CancelFunc

func (release) Data(int)    {}
func (r release) End(error) { r() }
