package httplayer

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of HTTP and gRPC:
//
//	502, 503, 504; UNAVAILABLE                          Retryable
//	429; RESOURCE_EXHAUSTED                             Throttled
//	other 5xx; UNKNOWN, DEADLINE_EXCEEDED,
//	PERMISSION_DENIED, INTERNAL, DATA_LOSS              Failure
//	what came from beyond this process as an error      Retryable
//	any other error                                     Failure
//
// Everything else is a Success. The gRPC status is read from the trailers once
// the response ended, from the header before; a 200 without one is a success.
// The failures are those of linkerd's proxy.
func Classify(o layer.Outcome[*http.Response]) layer.Class {
	switch {
	case o.Err != nil:
		if errors.Is(o.Err, layer.ErrTryTimeout) || isPeer(o.Err) {
			return layer.Retryable
		}
		return layer.Failure
	case o.Response == nil:
		return layer.Success
	}
	if code, ok := grpcStatus(o.Response, o.Ended); ok {
		return classOfCode(code)
	}
	switch status := o.Response.StatusCode; {
	case status == http.StatusTooManyRequests:
		return layer.Throttled
	case status >= http.StatusBadGateway && status <= http.StatusGatewayTimeout:
		return layer.Retryable
	case status >= http.StatusInternalServerError:
		return layer.Failure
	}
	return layer.Success
}

func grpcStatus(rsp *http.Response, ended bool) (uint64, bool) {
	text := rsp.Header.Get("Grpc-Status")
	if ended && rsp.Trailer.Get("Grpc-Status") != "" {
		text = rsp.Trailer.Get("Grpc-Status")
	}
	if text == "" {
		return 0, false
	}
	code, err := strconv.ParseUint(text, 10, 32)
	return code, err == nil
}

func classOfCode(code uint64) layer.Class {
	switch code {
	case grpcUnavailable:
		return layer.Retryable
	case grpcResourceExhausted:
		return layer.Throttled
	case grpcUnknown, grpcDeadlineExceeded, grpcPermissionDenied, grpcInternal, grpcDataLoss:
		return layer.Failure
	}
	return layer.Success
}
