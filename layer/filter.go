package layer

import (
	"context"
)

// Filter rejects the requests for which f returns an error.
//
// Admission: f decides on the request alone. Ready is inner's, because the
// request is not known yet.
//
// Cancellation: the context is passed unchanged.
//
// Body: not touched. f must not change the request or read its body.
//
// Errors: a rejection is an [Error] around f's error. It matches [ErrNotReady]
// only if f's error does, because the same request would be rejected again.
//
// Cost: f; no allocation for admitted requests.
//
// With a nil f the layer does nothing.
func Filter[Req, Rsp any](f func(Req) error, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(f != nil, "Filter: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
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

// If sends the requests for which pred holds through l, and all others past it.
// Both reach the same inner service.
//
// Admission: none of its own. Ready is inner's, because the request is not
// known yet. If such requests should wait, put a [Queue] into l, above the
// limit.
//
// Cancellation: the context is passed unchanged.
//
// Body: pred must not change the request or read its body.
//
// Errors: passed unchanged.
//
// Cost: pred, and one more indirect call through l; no allocation.
//
// With a nil l the layer does nothing; a nil pred holds for no request.
func If[Req, Rsp any](pred func(Req) bool, l Layer[Req, Rsp]) Layer[Req, Rsp] {
	check(pred != nil && l != nil, "If: nil predicate or Layer")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &filterIf[Req, Rsp]{Service: next, pred: pred, through: l(&filterJoin[Req, Rsp]{next})}
	}
}

type filterIf[Req, Rsp any] struct {
	Service[Req, Rsp]
	pred    func(Req) bool
	through Service[Req, Rsp]
}

func (f *filterIf[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if f.pred(req) {
		return f.through.Call(ctx, req)
	}
	return f.Service.Call(ctx, req)
}

func (f *filterIf[Req, Rsp]) Next() Service[Req, Rsp] { return f.Service }

// Describe shows the layer as a child, which ends where the two ways meet.
func (f *filterIf[Req, Rsp]) Describe() Node {
	return Node{Name: "if", Children: []Node{Describe(f.through)}}
}

// filterJoin is where the two ways meet.
type filterJoin[Req, Rsp any] struct{ Service[Req, Rsp] }

func (*filterJoin[Req, Rsp]) Describe() Node { return Node{Name: "next"} }
