package layer

import "context"

// Filter rejects the requests for which f returns an error.
//
// Admission: f decides. Ready is forwarded, because it has no request to pass to f.
//
// Cancellation: the context is passed unchanged.
//
// Body: not touched. f must not change the request or read its body.
//
// Errors: a rejection is an [Error] that wraps the error of f. It does not match
// [ErrNotReady], unless the error of f does, because the same request would be rejected
// again.
//
// Cost: one call of f. No allocation for admitted requests.
//
// A nil f panics.
func Filter[Req, Rsp any](f func(Req) error, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(f != nil, "Filter: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &filter[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, target: o.target, f: f,
			rejected: tally{to: o.to.LayerRejections.With("layer", "filter")},
		}
	}
}

type filter[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	f        func(Req) error
	rejected tally
}

func (l *filter[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if err = l.f(req); err != nil {
		l.rejected.inc()
		return rsp, &Error{Layer: "filter", Target: l.target, Err: err}
	}
	return l.Service.Call(ctx, req)
}

func (l *filter[Req, Rsp]) Describe() Node {
	return Node{Name: "filter", State: State{{"rejected", l.rejected.n.Load()}}}
}
