package layer

import "context"

// Filter rejects the requests that f returns an error for. They never reach
// inner.
//
// Admission: f decides, on the request alone; Ready is inner's, because the
// request is not known yet.
//
// Cancellation: the context is passed as it is.
//
// Body: not touched. f changes nothing in the request, and reads nothing of
// its body.
//
// Errors: a rejection is an [Error] around f's error, and matches what that
// matches. It is no refusal, because the same request would be rejected again,
// unless f's error matches [ErrNotReady]. What inner refuses is passed.
//
// Cost: f; no allocation for what passes.
//
// A nil f is no layer at all.
func Filter[Req, Rsp any](f func(Req) error, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if f == nil {
			return next
		}
		return &filter[Req, Rsp]{
			Service: next, target: o.target, f: f,
			rejected: tally{to: o.to.LayerRejections.With("layer", "filter")},
		}
	}
}

type filter[Req, Rsp any] struct {
	Service[Req, Rsp]
	target   string
	f        func(Req) error
	rejected tally
}

func (l *filter[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if err := l.f(req); err != nil {
		l.rejected.inc()
		var none Rsp
		return none, &Error{Layer: "filter", Target: l.target, Err: err}
	}
	return l.Service.Call(ctx, req)
}

func (l *filter[Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *filter[Req, Rsp]) Describe() Node {
	return Node{Name: "filter", State: State{{"rejected", l.rejected.n.Load()}}}
}
