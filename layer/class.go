package layer

import (
	"context"
	"errors"
	"reflect"
)

// Class is what the outcome of a request says of the service that served it.
type Class uint8

// The classes. [Failure], [Retryable] and [Throttled] are failures.
const (
	Ignorable Class = iota // tells nothing: cancelled by the caller, refused, injected
	Success                // served well
	Failure                // the service failed, and would again
	Retryable              // the service failed; the same request may succeed if it is sent again
	Throttled              // the service is well and asks for fewer requests; sending again later may help
)

// classes is how many there are.
const classes = int(Throttled) + 1

// String returns "ignorable", "success", "failure", "retryable" or "throttled".
func (c Class) String() string {
	names := [classes]string{"ignorable", "success", "failure", "retryable", "throttled"}
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// IsFailure reports whether the request did not get what it asked for.
func (c Class) IsFailure() bool { return c >= Failure }

// IsRetryable reports whether sending the same request again may help.
func (c Class) IsRetryable() bool { return c == Retryable || c == Throttled }

// ClassifyGRPC is what a gRPC status code says of the server: UNAVAILABLE is
// [Retryable], RESOURCE_EXHAUSTED [Throttled], and UNKNOWN, DEADLINE_EXCEEDED,
// PERMISSION_DENIED, INTERNAL and DATA_LOSS are [Failure]. With any other the
// server did what it is there for: [Success]. Those are the failures of
// linkerd's proxy, but for RESOURCE_EXHAUSTED, which is none there.
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

// Outcome is what is known of a request so far. Where there is an error, whoever
// has the response may be changing its header or trailers at this moment.
type Outcome[Rsp any] struct {
	Response Rsp   // the zero value when an error came in its place
	Err      error // what Call returned, or what broke the response off
	Ended    bool  // the response is complete, trailers included; false: only its head is there
}

// Classifier says what an outcome means. One classifier is given to a stack by
// [WithClassifier] and shared by its layers: retries, breakers, metrics. A balancer has
// that of its endpoints, see [Classified].
//
// It is asked when the head of a response is there (Ended is false), by those
// who cannot wait, and once more when it ended, by those who count. It is not
// asked about what no service is to blame for: refusals, callers who
// cancelled, injected errors. It is safe for concurrent use and reads nothing
// of the body.
type Classifier[Rsp any] func(o Outcome[Rsp]) Class

// WithClassifier says what outcomes mean to the layers of a stack. By default a
// response is a [Success] and an error a [Failure].
func WithClassifier[Rsp any](c Classifier[Rsp]) Option[Rsp] {
	check(c != nil, "WithClassifier: nil Classifier")
	return optionFunc[Rsp](func(o *options[Rsp]) { o.classify = c })
}

// DefaultClassifier is the default [Classifier]: a response is a [Success] and an error a
// [Failure], except that a time limit of a single try is [Retryable].
func DefaultClassifier[Rsp any](o Outcome[Rsp]) Class {
	switch {
	case o.Err == nil:
		return Success
	case errors.Is(o.Err, ErrAttemptTimeout):
		return Retryable
	}
	return Failure
}

// Classify is the class of an outcome for or against the service that gave it:
// [Ignorable] where nobody is to blame, else what c says: [Failure] if that is none
// of the classes. A response that was closed early is judged by its head. ctx is the
// request's, as whoever asks got it.
func (c Classifier[Rsp]) Classify(ctx context.Context, out Outcome[Rsp]) Class {
	switch {
	case out.Err == nil:
	case errors.Is(out.Err, ErrBodyClosedEarly):
		// Whoever closes early has seen enough; so have we.
		out.Err, out.Ended = nil, false
	case errors.Is(out.Err, ErrNotReady), errors.Is(out.Err, ErrInjected), cancelled(ctx):
		return Ignorable
	}
	if class := c(out); int(class) < classes {
		return class
	}
	return Failure
}

func (o *options[Rsp]) judge(ctx context.Context, out Outcome[Rsp]) Class {
	return o.classify.Classify(ctx, out)
}

// cancelled reports whether the caller has gone. A limit on a part of a request
// cancels too, and says so in its cause: that is the service's fault.
func cancelled(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// Classified is a Service that knows what its outcomes mean. A service that
// sends requests to an endpoint implements it, so that a balancer recognizes
// the failures of the endpoint without an option.
//
// Classifier returns the classifier, or nil if there is none. It is called
// when a service is put to use, not for each request.
type Classified[Rsp any] interface {
	Classifier() Classifier[Rsp]
}

// ClassifierOf returns the classifier of svc, or nil if it has none.
//
// It is that of the first [Classified] service on the way in: svc itself, then
// the services that it wraps. A wrapper is known by a method Next that returns
// the wrapped Service, or by a field Service that it embeds. A service built by
// a [Stack] has the classifier of the option [WithClassifier] if the Stack has that
// option and at least one layer.
//
// A service that makes or chooses another one for each request, such as a
// [Router], a [Failover], [Lazy] or [Reconnect], has none.
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
// tells to write a layer. It returns nil if there is none.
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
