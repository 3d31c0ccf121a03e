package layer

import "context"

// Filter rejects the requests for which f returns an error.
//
// Admission: f decides. Ready is forwarded, because there is no request yet that f could check.
//
// Cancellation: the context is passed unchanged.
//
// Body: not touched. f must not change the request or read its body.
//
// Errors: a rejection is an [Error] that wraps f's error. It matches [ErrNotReady] only if f's
// error does, because the same request would be rejected again.
//
// Cost: one call of f, and no allocation for admitted requests.
//
// A nil f panics.
func Filter[Req, Rsp any](f func(Req) error, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(f != nil, "Filter: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &filter[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, target: o.target, f: f,
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "filter")},
		}
	}
}

// Filter adds a [Filter] layer, which rejects the requests for which f returns an error.
func (s Stack[Req, Rsp]) Filter(f func(Req) error) Stack[Req, Rsp] {
	return s.With("filter", Filter(f, s.opts...))
}

// filter is the service of [Filter].
type filter[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	f        func(Req) error
	rejected tally
}

// Call sends req unless the filter's function returns an error for it.
func (l *filter[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if err = l.f(req); err != nil {
		l.rejected.inc()
		return rsp, &Error{Layer: "filter", Target: l.target, Err: err}
	}
	return l.Service.Call(ctx, req)
}

// Describe returns how many requests were rejected.
func (l *filter[Req, Rsp]) Describe() Node {
	return Node{Name: "filter", State: State{{"rejected", l.rejected.n.Load()}}}
}
