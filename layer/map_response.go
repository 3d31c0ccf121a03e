package layer

import "context"

// MapResponse gives the caller what f makes of each response. To make an error
// of a response, use [Then].
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: the context is passed as it is. It is alive while f runs, and
// until the response ended.
//
// Body: f owns the response that it is given. It may wrap its body; where it
// returns another response, it closes the one it drops.
//
// Errors: passed as they are. f sees none, and no refusal.
//
// Cost: f; no allocation.
//
// A nil f is no layer at all.
func MapResponse[Req, Rsp any](f func(Rsp) Rsp) Layer[Req, Rsp] {
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if f == nil {
			return next
		}
		return &mapResponse[Req, Rsp]{Service: next, f: f}
	}
}

type mapResponse[Req, Rsp any] struct {
	Service[Req, Rsp]
	f func(Rsp) Rsp
}

func (m *mapResponse[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	mapped := false
	defer func() {
		if !mapped { // a panic, or Goexit
			seamOf[Rsp]().closeBody(rsp)
		}
	}()
	if rsp, err = m.Service.Call(ctx, req); err == nil {
		rsp = m.f(rsp)
	}
	mapped = true
	return rsp, err
}

func (m *mapResponse[Req, Rsp]) Next() Service[Req, Rsp] { return m.Service }

func (m *mapResponse[Req, Rsp]) Describe() Node { return Node{Name: "map_response"} }
