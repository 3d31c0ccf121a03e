package layer

import (
	"context"
	"errors"
)

// Then gives the caller what f makes of each outcome: of a response with a nil
// error, or of an error that is not a refusal. It may turn either into the
// other.
//
// Admission: none of its own; Ready is forwarded. f runs after inner has
// returned: a slot that ended with Call is free by then.
//
// Cancellation: f gets the request's context, which may be done.
//
// Body: f owns the response that it is given. Where it returns another one, or
// an error, it closes the one it drops.
//
// Errors: refusals pass by f, so that none of them can be lost. An error that
// f returns never matches [ErrNotReady], whatever it wraps, because the
// request may have been served.
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func Then[Req, Rsp any](f func(context.Context, Rsp, error) (Rsp, error)) Layer[Req, Rsp] {
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if f == nil {
			return next
		}
		return &mapThen[Req, Rsp]{Service: next, f: f}
	}
}

type mapThen[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(context.Context, Rsp, error) (Rsp, error)
}

func (m *mapThen[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	mapped := false
	defer func() {
		if !mapped { // a panic, or Goexit
			seamOf[Rsp]().closeBody(rsp)
		}
	}()
	rsp, err = m.Service.Call(ctx, req)
	if err == nil || !errors.Is(err, ErrNotReady) {
		if rsp, err = m.f(ctx, rsp, err); err != nil {
			err = mapServed(err)
		}
	}
	mapped = true
	return rsp, err
}

func (m *mapThen[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapThen[Req, Rsp]) Describe() Node { return Node{Name: "then"} }
