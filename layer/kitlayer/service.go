package kitlayer

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
)

// Service makes a service of an endpoint. It is always ready, and rejects a
// request whose context has ended without calling the endpoint.
//
// A response of another type than Rsp is a [TypeError], and the request may have been served; a
// nil response is the zero Rsp. The errors of e are returned unchanged. If e calls another
// service of this library several times, use [Layer], which knows that an earlier attempt was
// admitted. It is as safe for concurrent use as e. A nil e panics.
func Service[Req, Rsp any](e endpoint.Endpoint) layer.Service[Req, Rsp] {
	if e == nil {
		panic("kitlayer: nil endpoint")
	}
	return service[Req, Rsp]{func(ctx context.Context, req Req) (Rsp, error) {
		return call[Req, Rsp](ctx, e, req)
	}}
}

// service is a Func that has Classify as its classifier.
type service[Req, Rsp any] struct{ layer.Func[Req, Rsp] }

func (service[Req, Rsp]) Classifier() layer.Classifier[Rsp] { return Classify[Rsp] }

func call[Req, Rsp any](ctx context.Context, e endpoint.Endpoint, req Req) (Rsp, error) {
	answer, err := e(ctx, req)
	rsp, wrong := as[Rsp]("response", answer)
	if err != nil {
		return rsp, err
	}
	return rsp, wrong
}

// Endpoint makes an endpoint of a service, for go-kit's transports and middlewares. A request
// of another type than Req is a [TypeError]; a nil request is the zero Req.
//
// The response must be complete when Call returns, because an endpoint of go-kit has no later
// end. Results of svc are returned unchanged. A nil svc panics.
func Endpoint[Req, Rsp any](svc layer.Service[Req, Rsp]) endpoint.Endpoint {
	if svc == nil {
		panic("kitlayer: nil service")
	}
	return func(ctx context.Context, request any) (any, error) {
		req, err := as[Req]("request", request)
		if err != nil {
			return nil, err
		}
		rsp, err := svc.Call(ctx, req)
		if err != nil {
			return nil, err
		}
		return rsp, nil
	}
}

// TypeError reports a message of an unexpected type.
type TypeError struct {
	Message string // "request" or "response"
	Want    string // the declared type
	Got     string // the type of the message
}

// Error has the message and both types.
func (e *TypeError) Error() string {
	return fmt.Sprintf("kitlayer: %s is a %s and not a %s: give both sides the same type", e.Message, e.Got, e.Want)
}

// as returns v as a T. A nil v is the zero value.
func as[T any](message string, v any) (T, error) {
	t, ok := v.(T)
	if ok || v == nil {
		return t, nil
	}
	return t, &TypeError{Message: message, Want: reflect.TypeFor[T]().String(), Got: reflect.TypeOf(v).String()}
}
