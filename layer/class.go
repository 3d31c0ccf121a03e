package layer

import (
	"context"
	"errors"
	"reflect"

	"github.com/gotower/gotower/internal/reqctx"
)

// Class classifies the outcome of a request: whether the service succeeded, and whether another
// attempt may.
type Class uint8

// The classes of outcomes. Failure, Retryable and Throttled are failures.
const (
	Ignorable Class = iota // does not count, because the request was canceled by the caller, rejected, or got an injected fault
	Success                // the service served the request
	Failure                // the service failed, and another attempt would fail too
	Retryable              // the service failed, but another attempt may succeed
	Throttled              // the service requests a lower rate; a later attempt may succeed
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

// IsRetryable reports whether c is Retryable or Throttled, so that another attempt may
// succeed.
func (c Class) IsRetryable() bool { return c == Retryable || c == Throttled }

// ClassifyGRPC returns the class of a gRPC status code:
//
//   - UNAVAILABLE is [Retryable].
//   - RESOURCE_EXHAUSTED is [Throttled].
//   - UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED, INTERNAL and DATA_LOSS are [Failure].
//   - All other codes are [Success].
//
// linkerd's proxy counts the same codes as failures, except RESOURCE_EXHAUSTED.
func ClassifyGRPC(code uint32) Class {
	switch code {
	case 14: // UNAVAILABLE
		return Retryable
	case 8: // RESOURCE_EXHAUSTED
		return Throttled
	case 2, 4, 7, 13, 15: // UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED, INTERNAL and DATA_LOSS
		return Failure
	}
	return Success
}

// Outcome is a request's result, either when the response headers have arrived or when the
// response has ended. If Err is not nil, you must not read Response's headers and trailers,
// because another goroutine may be writing them.
type Outcome[Rsp any] struct {
	Response Rsp   // the zero value if Call returned an error
	Err      error // the error of Call, or of the response body
	Ended    bool  // whether the response is complete, trailers included; false if Err is not nil
}

// Classifier returns an outcome's class. All layers of a stack share one Classifier, see
// [WithClassifier]. A balancer uses its endpoints' Classifier, see [Classified].
//
// It is called when the response headers have arrived (Ended is false), and again when the
// response ends. Rejections, injected errors and cancellations by the caller are not passed to
// it. It must be safe for concurrent use and must not read the body.
type Classifier[Rsp any] func(o Outcome[Rsp]) Class

// WithClassifier sets the [Classifier] for a layer or for all layers of a stack. The default is
// [DefaultClassifier].
func WithClassifier[Rsp any](c Classifier[Rsp]) Option[Rsp] {
	check(c != nil, "WithClassifier: nil Classifier")
	return func(o *options[Rsp]) { o.classify = c }
}

// DefaultClassifier classifies an outcome by its error only. It returns [Success] without
// an error, [Retryable] for an error that matches [ErrAttemptTimeout], and [Failure] for
// any other error.
func DefaultClassifier[Rsp any](o Outcome[Rsp]) Class {
	switch {
	case o.Err == nil:
		return Success
	case errors.Is(o.Err, ErrAttemptTimeout):
		return Retryable
	}
	return Failure
}

// Classify returns an outcome's class. ctx is the context with which the request was sent.
// Rejections, injected errors and cancellations by the caller are [Ignorable]. For other outcomes
// it returns the result of c, or [Failure] if c returns an undefined class. If the caller closed
// the body early, Classify passes only the headers to c.
func (c Classifier[Rsp]) Classify(ctx context.Context, out Outcome[Rsp]) Class {
	switch {
	case out.Err == nil:
	case errors.Is(out.Err, ErrBodyClosedEarly):
		// A caller that closes the body early has seen what it needs.
		out.Err, out.Ended = nil, false
	case errors.Is(out.Err, ErrNotReady), errors.Is(out.Err, ErrInjected), canceledByCaller(ctx):
		return Ignorable
	}
	if class := c(out); int(class) < classes {
		return class
	}
	return Failure
}

// classOf returns the class of an outcome, as [Classifier.Classify] does.
func (o *options[Rsp]) classOf(ctx context.Context, out Outcome[Rsp]) Class {
	return o.classify.Classify(ctx, out)
}

// canceledByCaller reports whether the caller has canceled the request with the context ctx, so that
// the service is not to blame. A context that ended because of a timeout is no cancellation: timeouts
// count as failures.
func canceledByCaller(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(reqctx.Cause(ctx), context.DeadlineExceeded)
}

// Classified is implemented by a [Service] that brings its own [Classifier]. A service that sends
// requests to an endpoint should implement it, so that a balancer recognizes the endpoint's
// failures without an option. A balancer calls Classifier once for each service. The result may
// be nil.
type Classified[Rsp any] interface {
	Classifier() Classifier[Rsp]
}

// ClassifierOf returns the [Classifier] that svc uses, or nil. If svc is [Classified], that is its
// own. Otherwise ClassifierOf continues with the service that svc wraps: the result of its Next
// method, or else an embedded field Service. A service of a [Stack] with [WithClassifier] and at
// least one layer is Classified. A [Router], [Lazy] or [Reconnect] returns no classifier, because
// it chooses a service for each request.
func ClassifierOf[Req, Rsp any](svc Service[Req, Rsp]) Classifier[Rsp] {
	for svc != nil {
		if c, ok := svc.(Classified[Rsp]); ok {
			return c.Classifier()
		}
		svc = wrappedBy(svc)
	}
	return nil
}

// wrappedBy returns the service that svc wraps: the result of its Next method, or else its embedded
// field Service, as in a layer that you write yourself. It returns nil if there is neither.
func wrappedBy[Req, Rsp any](svc Service[Req, Rsp]) Service[Req, Rsp] {
	if w, ok := svc.(interface{ Next() Service[Req, Rsp] }); ok {
		return w.Next()
	}
	// The layer may be a struct or a pointer to one.
	v := reflect.ValueOf(svc)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	field, ok := v.Type().FieldByName("Service")
	// A field that is not embedded may be any service, not the wrapped one.
	if !ok || !field.Anonymous {
		return nil
	}
	// FieldByIndexErr fails if the field belongs to an embedded pointer that is nil.
	if v, err := v.FieldByIndexErr(field.Index); err == nil {
		next, _ := reflect.TypeAssert[Service[Req, Rsp]](v)
		return next
	}
	return nil
}
