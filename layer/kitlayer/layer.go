package kitlayer

import (
	"context"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
)

// Layer returns a layer that applies the middleware mw. mw is called once for each service that the
// layer wraps. If mw is nil, the layer does nothing.
//
// Admission: the middleware decides. Ready is forwarded, because a middleware does not know Ready.
// A request whose context has ended is rejected.
//
// Cancellation: the middleware's context ends with the caller's.
//
// Body: not touched.
//
// Errors: errors from the middleware and from the service below are returned unchanged. If the
// middleware itself rejects a request, as a limiter does, its error does not match
// [layer.ErrNotReady]. A middleware may call the service several times for a request. If the
// service admitted one of these calls, the middleware must not return the rejection of another,
// because an outer layer would resend the request. If the middleware returns a message of another
// type, the call fails with a [TypeError].
//
// Cost: one allocation for each message that is not a pointer.
func Layer[Req, Rsp any](mw endpoint.Middleware) layer.Layer[Req, Rsp] {
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		if mw == nil {
			return next
		}
		// The middleware is applied once, and sees the layers below as its endpoint.
		around := mw(Endpoint(next))
		if around == nil {
			panic("kitlayer: the middleware returned a nil endpoint")
		}
		return &wrapped[Req, Rsp]{Service: next, around: around}
	}
}

// wrapped is the service of [Layer]: around is the middleware's endpoint, which calls the embedded service.
type wrapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	around endpoint.Endpoint
}

// Call sends req through the middleware, with the typed service below it.
func (w *wrapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var none Rsp
		return none, &layer.Error{Layer: "middleware", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	}
	return call[Req, Rsp](ctx, w.around, req)
}

// Next returns the service that the middleware calls.
func (w *wrapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return w.Service }

// Describe returns a node without state.
func (w *wrapped[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "middleware"} }

// Middleware returns a middleware that applies l, which may be a whole stack (see
// [layer.Stack.Layer]). l is applied to each endpoint separately, so that endpoints do not
// share its limits.
//
// A message of another type than Req or Rsp fails the call with a [TypeError]. If l is nil,
// the middleware does nothing.
func Middleware[Req, Rsp any](l layer.Layer[Req, Rsp]) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		if l == nil {
			return next
		}
		return Endpoint(l(Service[Req, Rsp](next)))
	}
}
