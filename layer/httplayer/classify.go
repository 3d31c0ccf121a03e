package httplayer

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// Classify is the [layer.Classifier] for HTTP and gRPC:
//
//	502, 503, 504; UNAVAILABLE                          Retryable
//	429; RESOURCE_EXHAUSTED                             Throttled
//	other 5xx; UNKNOWN, DEADLINE_EXCEEDED,
//	PERMISSION_DENIED, INTERNAL, DATA_LOSS              Failure
//	an error at the endpoint or on the network          Retryable
//	a [StatusError]                                     the class of its status
//	an invalid request, or a request body that failed   Ignorable
//	the context ended during a Read of an upload        Ignorable
//	any other error                                     Failure
//	any other response                                  Success
//
// An upload is a request body, except a body of gRPC and a body of HTTP/2 without a content-length.
// The gRPC status takes precedence over the HTTP status. It comes from the trailers if the response
// has ended and they have it, and otherwise from the headers. A gRPC status that is not a number is
// UNKNOWN. A gRPC response that ended without a gRPC status is classified by its HTTP status, as in
// linkerd's proxy.
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
	chosen, ok := errors.AsType[*StatusError](err)
	switch {
	case has[*bodyError](err), has[*message.RequestError](err):
		return layer.Ignorable
	case ok:
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
	text := first(rsp.Header, "Grpc-Status")
	if ended {
		text = cmp.Or(first(rsp.Trailer, "Grpc-Status"), text)
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

// first returns the first value of the header field with the given name, or "". The name must be in
// canonical form. first is faster than [http.Header.Get].
func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}
