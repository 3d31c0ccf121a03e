package kitlayer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/internal/ctxreason"
	"github.com/gotower/gotower/layer"
)

// Layer makes a layer of a middleware, which is applied once for each service under the layer.
//
// Admission: the middleware decides. Ready is forwarded, because it does not know the
// middleware. A request whose context has ended is rejected before the middleware.
//
// Cancellation: the middleware's context ends with the caller's.
//
// Body: not touched.
//
// Errors: errors of the middleware and of inner are returned unchanged. The error of a
// middleware that rejects requests (a limiter, a breaker) is not a rejection here,
// because the request may have been touched. If inner admitted a request and rejected a
// later attempt of the middleware, the
// error is a [layer.ErrRetryRejected] ([layer.ErrTimeout] after fail-fast). This requires that
// the middleware calls inner with a context derived from its own. If it changes the type of a
// message, the call fails with a [TypeError].
//
// Cost: one allocation to count the calls of inner, and one for each message
// that is not a pointer.
//
// A nil middleware changes nothing.
func Layer[Req, Rsp any](mw endpoint.Middleware) layer.Layer[Req, Rsp] {
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		if mw == nil {
			return next
		}
		around := mw(counted(Endpoint(next)))
		if around == nil {
			panic("kitlayer: the middleware returned a nil endpoint")
		}
		return &wrapped[Req, Rsp]{Service: next, around: around}
	}
}

type wrapped[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	around endpoint.Endpoint
}

func (w *wrapped[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if ctx.Err() != nil {
		var none Rsp
		return none, &layer.Error{Layer: "middleware", Kind: layer.ErrNotReady, Reason: ctxreason.Text(ctx), Err: context.Cause(ctx)}
	}
	own := &admissions{Context: ctx}
	rsp, err := call[Req, Rsp](own, w.around, req)
	if err != nil && own.count.Load() > 0 && errors.Is(err, layer.ErrNotReady) {
		err = rejectedLater(err)
	}
	return rsp, err
}

func (w *wrapped[Req, Rsp]) Next() layer.Service[Req, Rsp] { return w.Service }

func (w *wrapped[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "middleware"} }

// admissions is the context of one request. It counts the calls that the inner
// service has admitted, including those in flight.
type admissions struct {
	context.Context //nolint:containedctx // it is one

	count atomic.Int32
}

type admissionsKey struct{}

func (a *admissions) Value(key any) any {
	if key == (admissionsKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// counted adds each call of e to the admissions of its request.
func counted(e endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		a, ok := ctx.Value(admissionsKey{}).(*admissions)
		if !ok {
			return e(ctx, request)
		}
		if a == ctx {
			ctx = a.Context // the middleware passed its context on
		}
		a.count.Add(1)
		rsp, err := e(ctx, request)
		if err != nil && errors.Is(err, layer.ErrNotReady) {
			a.count.Add(-1)
		}
		return rsp, err
	}
}

// rejectedLater returns the error of a request that was rejected after its first
// attempt. The error does not wrap the rejection, because it must not match ErrNotReady.
func rejectedLater(rejection error) error {
	kind := layer.ErrRetryRejected
	if errors.Is(rejection, layer.ErrFailFast) {
		kind = layer.ErrTimeout
	}
	after, _ := layer.RetryAfter(rejection)
	return &layer.Error{
		Layer: "middleware", Kind: kind, RetryAfter: after,
		Reason: fmt.Sprintf("called more than once, the last rejected (%v)", rejection),
	}
}

// Middleware makes a middleware from a layer, which may be a stack (Stack.Layer).
// The layer is applied to each endpoint separately, so that limits are not shared.
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
