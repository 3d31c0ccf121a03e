package kitlayer

import (
	"errors"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of go-kit:
//
//	a response, also a Failer that failed             Success
//	an error with StatusCode() 429                    Throttled
//	an error with StatusCode() 400 to 499             Success
//	an error with StatusCode() 502, 503 or 504        Retryable
//	an error with any other StatusCode()              Failure
//	a [TypeError]                                     Failure
//	any other error                                   Retryable
//
// A response that is an endpoint.Failer reports an error of the business: the
// endpoint did what it is there for. go-kit's own breakers and retries do not count
// it either. StatusCode is the method of the StatusCoder of go-kit's HTTP transport.
//
// An endpoint of go-kit's gRPC transport returns errors with a gRPC status: give
// its stack layer.WithClassifier(grpclayer.Classify[Rsp]) instead, and its balancer the same
// by balance.WithClassifier. By default, a balancer takes Classify from a [Service].
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	var coder interface{ StatusCode() int }
	var mistyped *TypeError
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.As(o.Err, &coder):
		return classOfStatus(coder.StatusCode())
	case errors.As(o.Err, &mistyped):
		return layer.Failure
	}
	return layer.Retryable
}

// classOfStatus is what an HTTP status says of the endpoint.
func classOfStatus(status int) layer.Class {
	switch {
	case status == 429:
		return layer.Throttled
	case status >= 400 && status < 500:
		return layer.Success
	case status >= 502 && status <= 504:
		return layer.Retryable
	}
	return layer.Failure
}
