package kitlayer

import (
	"errors"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of go-kit. It classifies each response as Success,
// even an endpoint.Failer that reports an error. It classifies an error as follows:
//
//	an error with StatusCode() 429                    Throttled
//	an error with StatusCode() 400 to 499             Success
//	an error with StatusCode() 502, 503 or 504        Retryable
//	an error with any other StatusCode()              Failure
//	a [TypeError]                                     Failure
//	any other error                                   Retryable
//
// An endpoint.Failer reports an error of the business logic. go-kit's own breakers and
// retries do not count such errors either. StatusCode is the method of the StatusCoder in
// go-kit's HTTP transport.
//
// Endpoints of go-kit's gRPC transport return errors with a gRPC status. For these, pass
// layer.WithClassifier(grpclayer.Classify[Rsp]) to the stack, and pass the same classifier
// to the balancer by balance.WithClassifier.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	var coder interface{ StatusCode() int }
	var typeErr *TypeError
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.As(o.Err, &coder):
		return classOfStatus(coder.StatusCode())
	case errors.As(o.Err, &typeErr):
		return layer.Failure
	}
	return layer.Retryable
}

// classOfStatus returns the class of an error with the given HTTP status.
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
