package kitlayer

import (
	"errors"
	"reflect"

	"github.com/go-kit/kit/ratelimit"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] for go-kit. It classifies each response as Success, even an
// endpoint.Failer that reports an error. It classifies an error as follows:
//
//	an error with StatusCode() 429                    Throttled
//	an error with StatusCode() 400 to 499             Success
//	an error with StatusCode() 502, 503 or 504        Retryable
//	an error with any other StatusCode()              Failure
//	an error with GRPCStatus()                        as by grpclayer.Classify
//	ratelimit.ErrLimited                              Throttled
//	a [TypeError]                                     Failure
//	any other error                                   Retryable
//
// An endpoint.Failer reports an error in the business logic. go-kit's own breakers and retries do
// not count such errors either. StatusCode is the method of StatusCoder in go-kit's HTTP
// transport. Endpoints of the gRPC transport return errors with GRPCStatus.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	var coder interface{ StatusCode() int }
	var typeErr *TypeError
	// A status of the service says more than the type of the error, and so comes first.
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.As(o.Err, &coder):
		return classOfStatus(coder.StatusCode())
	case errors.As(o.Err, &typeErr):
		return layer.Failure
	case errors.Is(o.Err, ratelimit.ErrLimited):
		return layer.Throttled
	}
	// The status of gRPC is read by reflection, without importing gRPC.
	if code, ok := grpcCode(o.Err); ok {
		return layer.ClassifyGRPC(code)
	}
	// An error without any sign is probably one of the connection.
	return layer.Retryable
}

// grpcCode returns the code of err's gRPC status, if err or an error that it wraps carries one. It uses reflection,
// so that users of go-kit without gRPC need not link it.
func grpcCode(err error) (code uint32, ok bool) {
	for err != nil {
		if code, ok := ownCode(err); ok {
			return code, true
		}
		// A joined error: each of its errors may carry the status.
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range many.Unwrap() {
				if code, ok := grpcCode(err); ok {
					return code, true
				}
			}
			return 0, false
		}
		err = errors.Unwrap(err)
	}
	return 0, false
}

// ownCode returns the code of err.GRPCStatus().Code().
func ownCode(err error) (code uint32, ok bool) {
	// GRPCStatus must take no argument and return one value, whose method Code returns a uint32, as codes.Code is one.
	get := reflect.ValueOf(err).MethodByName("GRPCStatus")
	if !get.IsValid() || get.Type().NumIn() != 0 || get.Type().NumOut() != 1 {
		return 0, false
	}
	get = get.Call(nil)[0].MethodByName("Code")
	if !get.IsValid() || get.Type().NumIn() != 0 || get.Type().NumOut() != 1 || get.Type().Out(0).Kind() != reflect.Uint32 {
		return 0, false
	}
	return uint32(get.Call(nil)[0].Uint()), true
}

// asRejection returns err as a rejection if it comes from a limiter or a circuit breaker in front of an endpoint, which
// has not called the endpoint. A breaker's errors are those of github.com/sony/gobreaker, which go-kit uses. They are
// compared by their texts, so that this package need not require a version of it.
func asRejection(err error) error {
	var reason string
	switch {
	case errors.Is(err, ratelimit.ErrLimited):
		reason = "rate limit"
	case isText(err, "circuit breaker is open"), isText(err, "too many requests"):
		reason = "breaker"
	default:
		return err
	}
	return &layer.Error{Layer: "endpoint", Kind: layer.ErrNotReady, Reason: reason, Err: err}
}

// isText reports whether err is a plain error with the given text, as of errors.New.
func isText(err error, text string) bool {
	// An error of another type may have this text by chance.
	return reflect.TypeOf(err) == reflect.TypeOf(errPlain) && err.Error() == text
}

// errPlain has the type that errors.New returns, for a comparison.
var errPlain = errors.New("")

// classOfStatus returns the class of an error with the given HTTP status.
// As for HTTP: 5xx means a failure of the server, of which 502 to 504 come from something in front of it.
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
