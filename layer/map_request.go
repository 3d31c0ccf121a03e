package layer

import "context"

// MapRequest gives inner what f makes of each request.
//
// Admission: none of its own; Ready is forwarded. Inner may refuse what f made,
// and that promises the caller that its request is untouched: so f returns
// another one, a copy with its changes, and leaves what it is given as it is.
//
// Cancellation: the context is passed as it is.
//
// Body: that of the response is not touched; that of the request may be
// wrapped by f, and not read.
//
// Errors: passed as they are. f sees none; to reject a request use [Filter].
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func MapRequest[Req, Rsp any](f func(Req) Req) Layer[Req, Rsp] {
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if f == nil {
			return next
		}
		return &mapRequest[Req, Rsp]{Service: next, f: f}
	}
}

type mapRequest[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(Req) Req
}

func (m *mapRequest[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return m.Service.Call(ctx, m.f(req))
}

func (m *mapRequest[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapRequest[Req, Rsp]) Describe() Node { return Node{Name: "map_request"} }
