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
//	a [StatusError]                                     as a response with its status
//	a request body that could not be read, or was       Ignorable
//	awaited when the time was over, unless it is of gRPC
//	or of HTTP/2 without a content-length
//	any other error                                     Failure
//
// Everything else is a Success. The gRPC status is read from the trailers once
// the response ended, else from the header, where a response that is nothing
// but trailers has it; it counts for more than the HTTP status. One that is no
// number is UNKNOWN, as in gRPC. A gRPC response that ended without a status
// is judged by its HTTP status: a 200 is a Success, as in linkerd's proxy, whose
// failures these are.
func Classify(o layer.Outcome[*http.Response]) layer.Class {
	switch {
	case o.Err != nil:
		return classOfError(o.Err)
	case o.Response == nil:
		return layer.Success
	}
	if code, ok := grpcStatus(o.Response, o.Ended); ok {
		return layer.ClassifyGRPC(code)
	}
	return classOfStatus(o.Response.StatusCode)
}

func classOfError(err error) layer.Class {
	var chosen *StatusError
	var body *bodyError
	switch {
	case errors.As(err, &body):
		return layer.Ignorable
	case errors.As(err, &chosen):
		return classOfStatus(chosen.status())
	case errors.Is(err, layer.ErrAttemptTimeout), isPeer(err):
		return layer.Retryable
	}
	return layer.Failure
}

func classOfStatus(status int) layer.Class {
	switch {
	case status == http.StatusTooManyRequests:
		return layer.Throttled
	case status >= http.StatusBadGateway && status <= http.StatusGatewayTimeout:
		return layer.Retryable
	case status >= http.StatusInternalServerError:
		return layer.Failure
	}
	return layer.Success
}

func grpcStatus(rsp *http.Response, ended bool) (uint32, bool) {
	text := rsp.Header.Get("Grpc-Status")
	if ended && rsp.Trailer.Get("Grpc-Status") != "" {
		text = rsp.Trailer.Get("Grpc-Status")
	}
	if text == "" {
		return 0, false
	}
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		code = grpcUnknown
	}
	return uint32(code), true
}
