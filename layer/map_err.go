package layer

import (
	"context"
	"errors"
)

// MapErr gives the caller what f makes of each error that is not a refusal.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed as it is. f sees the errors of callers
// who cancelled, too.
//
// Body: not touched. Errors that break a body off are not seen.
//
// Errors: refusals pass by f, so that none of them can be lost. What f returns
// never matches [ErrNotReady], whatever it wraps, because the request may have
// been served; where it returns nil the error stays as it was. Wrap the error
// (%w), so that layers above still find what they look for.
//
// Cost: nothing but an indirect call while there is no error; no allocation.
//
// A nil f is no layer at all.
func MapErr[Req, Rsp any](f func(error) error) Layer[Req, Rsp] {
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if f == nil {
			return next
		}
		return &mapErr[Req, Rsp]{Service: next, f: f}
	}
}

type mapErr[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(error) error
}

func (m *mapErr[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	rsp, err := m.Service.Call(ctx, req)
	if err == nil || errors.Is(err, ErrNotReady) {
		return rsp, err
	}
	if other := m.f(err); other != nil {
		err = mapServed(other)
	}
	return rsp, err
}

func (m *mapErr[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapErr[Req, Rsp]) Describe() Node { return Node{Name: "map_err"} }
