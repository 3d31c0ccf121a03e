package kitlayer

import (
	"context"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
)

// Layer makes a layer of a middleware, which is applied once for each service
// that the layer is put on.
//
// Admission: that of the middleware, which go-kit gives no way to ask for.
// Ready is forwarded.
//
// Cancellation: the context is handed to the middleware as it is.
//
// Body: not touched.
//
// Errors: those of the middleware and of inner, as they are. A middleware that
// refuses requests (a limiter, a breaker) says so by its own error, which is
// no refusal here: whether the request was untouched is not known. One that
// changes the type of a message makes the call fail with a [TypeError].
//
// Cost: the messages as any, which is an allocation where they are no
// pointers.
//
// A nil middleware changes nothing.
func Layer[Req, Rsp any](mw endpoint.Middleware) layer.Layer[Req, Rsp] {
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		if mw == nil {
			return next
		}
		return &wrapped[Req, Rsp]{Service: next, around: mw(Endpoint(next))}
	}
}

type wrapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	around endpoint.Endpoint
}

func (w *wrapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	return call[Req, Rsp](ctx, w.around, req)
}

func (w *wrapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return w.Service }

func (w *wrapped[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "middleware"} }

// Middleware makes a middleware of a layer, or of a whole stack (Stack.Layer).
// The layer is applied once for each endpoint, so that a limit in it is that
// endpoint's own; to share one, make a [Service] of several endpoints first.
//
// A message of another type is a [TypeError]. A nil layer changes nothing.
func Middleware[Req, Rsp any](l layer.Layer[Req, Rsp]) endpoint.Middleware {
	return func(next endpoint.Endpoint) endpoint.Endpoint {
		if l == nil {
			return next
		}
		return Endpoint(l(Service[Req, Rsp](next)))
	}
}
