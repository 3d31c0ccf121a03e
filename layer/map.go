package layer

import "context"

// MapRequest replaces each request by the result of f, and passes that to inner.
//
// Admission: every request is admitted. Ready is forwarded. f must return a copy if it
// changes the request, because a rejected request must be unchanged.
//
// Cancellation: the context is passed unchanged.
//
// Body: f may wrap the body of the request, but must not read it.
//
// Errors: passed unchanged. To reject a request use [Filter].
//
// Cost: one call of f. No allocation.
//
// A nil f panics.
func MapRequest[Req, Rsp any](f func(Req) Req) Layer[Req, Rsp] {
	check(f != nil, "MapRequest: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapRequest[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, f: f}
	}
}

type mapRequest[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	f func(Req) Req
}

func (m *mapRequest[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return m.Service.Call(ctx, m.f(req))
}

func (m *mapRequest[Req, Rsp]) Describe() Node { return Node{Name: "map_request"} }

// MapResponse replaces each response of inner by the result of f.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: the context is passed unchanged. It has not ended when f is called, unless
// the caller canceled it. It does not end before the response.
//
// Body: f may wrap the body of the response. If f returns another response, it must close
// the body of its argument.
//
// Errors: passed unchanged, without a call of f.
//
// Cost: one call of f. No allocation.
//
// A nil f panics.
func MapResponse[Req, Rsp any](f func(Rsp) Rsp) Layer[Req, Rsp] {
	check(f != nil, "MapResponse: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapResponse[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, f: f}
	}
}

type mapResponse[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	f func(Rsp) Rsp
}

func (m *mapResponse[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	mapped := false
	defer func() {
		if !mapped { // a panic, or Goexit
			bodyAccessorOf[Rsp]().closeBody(rsp)
		}
	}()
	if rsp, err = m.Service.Call(ctx, req); err == nil {
		rsp = m.f(rsp)
	}
	mapped = true
	return rsp, err
}

func (m *mapResponse[Req, Rsp]) Describe() Node { return Node{Name: "map_response"} }
