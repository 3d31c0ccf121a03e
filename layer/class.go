package layer

import (
	"context"
	"errors"
	"reflect"
)

// Class is the meaning of an outcome for the service that served the request.
type Class uint8

// The classes. [Failure], [Retryable] and [Throttled] are failures.
const (
	Ignorable Class = iota // does not count: canceled by the caller, rejected, injected
	Success                // served successfully
	Failure                // the service failed, and would fail again
	Retryable              // the service failed, and the same request may succeed when repeated
	Throttled              // the service asks for fewer requests; a later attempt may succeed
)

// classes is the number of classes.
const classes = int(Throttled) + 1

// String returns "ignorable", "success", "failure", "retryable" or "throttled".
func (c Class) String() string {
	names := [classes]string{"ignorable", "success", "failure", "retryable", "throttled"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// IsFailure reports whether c is Failure, Retryable or Throttled.
func (c Class) IsFailure() bool { return c >= Failure }

// IsRetryable reports whether another attempt may succeed.
func (c Class) IsRetryable() bool { return c == Retryable || c == Throttled }

// ClassifyGRPC returns the class of a gRPC status code: UNAVAILABLE is
// [Retryable], RESOURCE_EXHAUSTED is [Throttled]. UNKNOWN, DEADLINE_EXCEEDED,
// PERMISSION_DENIED, INTERNAL and DATA_LOSS are [Failure]. All others are
// [Success]. Except for RESOURCE_EXHAUSTED, these are the failures of linkerd's
// proxy.
func ClassifyGRPC(code uint32) Class {
	switch code {
	case 14:
		return Retryable
	case 8:
		return Throttled
	case 2, 4, 7, 13, 15:
		return Failure
	}
	return Success
}

// Outcome is the result of a request so far. With an error, another goroutine
// may be changing the headers or trailers of Response.
type Outcome[Rsp any] struct {
	Response Rsp   // the zero value if Call returned an error
	Err      error // the error of Call, or of the response body
	Ended    bool  // true: complete with trailers; false: only the headers have arrived
}

// Classifier returns the class of an outcome. The layers of a stack share one:
// retries, breakers and metrics; see [WithClassifier]. A balancer uses that of
// its endpoints, see [Classified].
//
// It is called at the response headers (Ended is false) and again at the end of
// the response. It is not called for rejections, cancellations by the caller
// and injected errors. It must be safe for concurrent use and must not read the
// body.
type Classifier[Rsp any] func(o Outcome[Rsp]) Class

// WithClassifier sets the classifier of a stack. By default a response is a
// [Success] and an error a [Failure].
func WithClassifier[Rsp any](c Classifier[Rsp]) Option[Rsp] {
	check(c != nil, "WithClassifier: nil Classifier")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.classify = c })
}

// DefaultClassifier is the default [Classifier]: a response is a [Success] and
// an error a [Failure]. A timeout of one attempt is [Retryable].
func DefaultClassifier[Rsp any](o Outcome[Rsp]) Class {
	switch {
	case o.Err == nil:
		return Success
	case errors.Is(o.Err, ErrAttemptTimeout):
		return Retryable
	}
	return Failure
}

// Classify returns the class of an outcome: [Ignorable] if the service is not
// responsible, else the result of c. An invalid result is a [Failure]. A
// response that was closed early is classified by its headers. ctx is the
// context of the request.
func (c Classifier[Rsp]) Classify(ctx context.Context, out Outcome[Rsp]) Class {
	switch {
	case out.Err == nil:
	case errors.Is(out.Err, ErrBodyClosedEarly):
		// The reader that closes early has the part that it needs.
		out.Err, out.Ended = nil, false
	case errors.Is(out.Err, ErrNotReady), errors.Is(out.Err, ErrInjected), cancelled(ctx):
		return Ignorable
	}
	if class := c(out); int(class) < classes {
		return class
	}
	return Failure
}

func (o *options[Rsp]) classOf(ctx context.Context, out Outcome[Rsp]) Class {
	return o.classify.Classify(ctx, out)
}

// cancelled reports whether the caller canceled the request. A timeout of a
// part of a request also cancels, but its cause says so and it counts against
// the service.
func cancelled(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// Classified is a Service with its own classifier. A service that sends
// requests to an endpoint implements it, so that a balancer recognizes the
// endpoint's failures without an option. Classifier returns nil for none. It is
// called when a service is put to use, not for each request.
type Classified[Rsp any] interface {
	Classifier() Classifier[Rsp]
}

// ClassifierOf returns the classifier of svc, or nil. It is that of the first
// [Classified] service from svc inwards. Wrappers are recognized by a method
// Next that returns the wrapped Service, or by an embedded field Service. A
// service built by a [Stack] with [WithClassifier] and at least one layer has
// that classifier. A [Router], [Failover], [Lazy] or [Reconnect] has none,
// because it chooses a service for each request.
func ClassifierOf[Req, Rsp any](svc Service[Req, Rsp]) Classifier[Rsp] {
	for svc != nil {
		if c, ok := svc.(Classified[Rsp]); ok {
			return c.Classifier()
		}
		if w, ok := svc.(interface{ Next() Service[Req, Rsp] }); ok {
			svc = w.Next()
			continue
		}
		svc = embedded(svc)
	}
	return nil
}

// embedded returns the Service that a struct embeds, as the doc of [Layer]
// recommends, or nil.
func embedded[Req, Rsp any](svc Service[Req, Rsp]) Service[Req, Rsp] {
	v := reflect.ValueOf(svc)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	field, ok := v.Type().FieldByName("Service")
	if !ok || !field.Anonymous {
		return nil
	}
	if v, err := v.FieldByIndexErr(field.Index); err == nil {
		next, _ := reflect.TypeAssert[Service[Req, Rsp]](v)
		return next
	}
	return nil
}
