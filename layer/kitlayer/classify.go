package kitlayer

import (
	"reflect"

	"github.com/go-kit/kit/endpoint"

	"github.com/gotower/gotower/layer"
)

// Classify is the [layer.Classifier] of go-kit: a response that is an
// [endpoint.Failer] and says that it failed is a [layer.Failure], everything
// else is what [layer.ByError] says. Give it to a stack by [layer.Classify]. A
// balancer takes it from a [Service].
//
// A Failer reports what went wrong in the service's own terms, so that nobody
// can tell here whether sending the request again would help.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	if o.Err == nil {
		if f, ok := any(o.Response).(endpoint.Failer); ok && !isNil(f) && f.Failed() != nil {
			return layer.Failure
		}
	}
	return layer.ByError(o)
}

// isNil is for what Service makes of an endpoint's nil: a method of it may panic.
func isNil(f endpoint.Failer) bool {
	v := reflect.ValueOf(f)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
