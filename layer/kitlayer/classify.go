package kitlayer

import (
	"errors"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of go-kit:
//
//	a response, including a failed Failer             Success
//	an error with StatusCode() 429                    Throttled
//	an error with StatusCode() 400 to 499             Success
//	an error with StatusCode() 502, 503 or 504        Retryable
//	an error with any other StatusCode()              Failure
//	a [TypeError]                                     Failure
//	any other error                                   Retryable
//
// An endpoint.Failer reports an error of the business logic, which go-kit's own
// breakers and retries do not count either. StatusCode is the method of the
// StatusCoder of go-kit's HTTP transport.
//
// Endpoints of go-kit's gRPC transport return errors with a gRPC status. For them
// set layer.WithClassifier(grpclayer.Classify[Rsp]) in the stack, and the same by
// balance.WithClassifier in the balancer.
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

// classOfStatus returns the class of an HTTP status.
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
