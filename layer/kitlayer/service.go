package kitlayer

import (
	"context"
	"fmt"
	"reflect"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
)

// Service returns a service that calls the endpoint e. It is always ready. If the context has
// ended, it rejects the request and does not call e.
//
// If e returns a response of another type than Rsp, the call fails with a [TypeError], although
// the request may have been served. A nil response becomes the zero Rsp. The errors of e are
// returned unchanged, except those of go-kit's limiter (ErrLimited) and circuit breaker
// (ErrOpenState, ErrTooManyRequests): they become rejections, which wrap them, because e has sent
// nothing. The service is safe for concurrent use if e is. A nil e panics.
func Service[Req, Rsp any](e endpoint.Endpoint) layer.Service[Req, Rsp] {
	if e == nil {
		panic("kitlayer: nil endpoint")
	}
	return service[Req, Rsp]{func(ctx context.Context, req Req) (Rsp, error) {
		rsp, err := call[Req, Rsp](ctx, e, req)
		// go-kit's middlewares reject by plain errors, which are converted to a rejection.
		if err != nil {
			err = asRejection(err)
		}
		return rsp, err
	}}
}

// service is a [layer.Func] that implements [layer.Classified] with [Classify].
type service[Req, Rsp any] struct{ layer.Func[Req, Rsp] }

// Classifier returns [Classify], by which layers above recognize the failures of go-kit's responses.
func (service[Req, Rsp]) Classifier() layer.Classifier[Rsp] { return Classify[Rsp] }

// call calls e and converts its response to Rsp. A response of another type is an error.
func call[Req, Rsp any](ctx context.Context, e endpoint.Endpoint, req Req) (Rsp, error) {
	answer, err := e(ctx, req)
	// A response is passed on together with an error, if it has the right type.
	rsp, wrong := as[Rsp]("response", answer)
	if err != nil {
		return rsp, err
	}
	return rsp, wrong
}

// Endpoint returns an endpoint that calls svc, for go-kit's transports and middlewares. A request
// of another type than Req fails with a [TypeError]. A nil request becomes the zero Req.
//
// The response must be complete when Call returns, because go-kit does not report a later end.
// svc's response and error are returned unchanged. A nil svc panics.
func Endpoint[Req, Rsp any](svc layer.Service[Req, Rsp]) endpoint.Endpoint {
	if svc == nil {
		panic("kitlayer: nil service")
	}
	return func(ctx context.Context, request any) (any, error) {
		// go-kit passes any type. A wrong one is a mistake in the program, and reported.
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

// TypeError reports a request or response of an unexpected type.
type TypeError struct {
	Message string // "request" or "response"
	Want    string // the declared type
	Got     string // the type of the message
}

// Error returns a text with the kind of message and both types.
func (e *TypeError) Error() string {
	return fmt.Sprintf("kitlayer: the %s is of type %s, want %s: use the same types on both sides", e.Message, e.Got, e.Want)
}

// as returns v as a T. A nil v becomes the zero T. If v is of another type, as returns a
// [TypeError] for the given message.
func as[T any](message string, v any) (T, error) {
	t, ok := v.(T)
	if ok || v == nil {
		return t, nil
	}
	return t, &TypeError{Message: message, Want: reflect.TypeFor[T]().String(), Got: reflect.TypeOf(v).String()}
}
