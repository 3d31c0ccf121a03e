package layer

import "context"

// MapRequest passes f's result to inner in place of each request.
//
// Admission: every request is admitted. Ready is forwarded. f must return a copy if it changes
// the request, because a rejected request must be unchanged.
//
// Cancellation: the context is passed unchanged.
//
// Body: f may wrap the request body, but must not read it.
//
// Errors: passed unchanged. To reject requests, use [Filter].
//
// Cost: one call of f, without an allocation.
//
// A nil f panics.
func MapRequest[Req, Rsp any](f func(Req) Req) Layer[Req, Rsp] {
	check(f != nil, "MapRequest: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapRequest[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, f: f}
	}
}

// MapRequest adds a [MapRequest] layer, which replaces each request by the result of f.
func (s Stack[Req, Rsp]) MapRequest(f func(Req) Req) Stack[Req, Rsp] {
	return s.With("map_request", MapRequest[Req, Rsp](f))
}

// mapRequest is the service of [MapRequest].
type mapRequest[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	f func(Req) Req
}

// Call sends the result of f for req.
func (m *mapRequest[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return m.Service.Call(ctx, m.f(req))
}

// Describe returns a node without state.
func (m *mapRequest[Req, Rsp]) Describe() Node { return Node{Name: "map_request"} }

// MapResponse replaces each response of inner with the result of f.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: the context is passed unchanged. It is still alive when f is called, unless the
// caller canceled it, and does not end before the response.
//
// Body: f may wrap the response body. If f returns another response, it must close the body of
// the one that it received.
//
// Errors: passed unchanged, without a call of f.
//
// Cost: one call of f, without an allocation.
//
// A nil f panics.
func MapResponse[Req, Rsp any](f func(Rsp) Rsp) Layer[Req, Rsp] {
	check(f != nil, "MapResponse: nil function")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &mapResponse[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, f: f}
	}
}

// MapResponse adds a [MapResponse] layer, which replaces each response by the result of f.
func (s Stack[Req, Rsp]) MapResponse(f func(Rsp) Rsp) Stack[Req, Rsp] {
	return s.With("map_response", MapResponse[Req](f))
}

// mapResponse is the service of [MapResponse].
type mapResponse[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	f func(Rsp) Rsp
}

// Call sends req and returns the function's result for the response.
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

// Describe returns a node without state.
func (m *mapResponse[Req, Rsp]) Describe() Node { return Node{Name: "map_response"} }
