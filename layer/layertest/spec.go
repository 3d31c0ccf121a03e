package layertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

// Spec describes the service or layer under test to [Run]. It is a [Layer],
// [LayerOf], [Service] or [ServiceOf].
type Spec interface {
	conform(t *testing.T)
}

// Layer is the [LayerOf] of a layer for any message types:
//
//	layertest.Run(t, layertest.Layer{
//		Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//		Limit: 8,
//	})
type Layer = LayerOf[*Request, *Response]

// LayerOf is a layer under test with its declared properties. Every check
// applies the layer to a new inner service.
type LayerOf[Req, Rsp any] struct {
	// Layer is the layer under test.
	Layer layer.Layer[Req, Rsp]

	// New is used instead of Layer if the layer needs a context, such as a
	// balancer whose endpoints are all next. Its goroutines end with ctx. It
	// may learn from rejections that next is not ready.
	New func(ctx context.Context, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]

	// Request and Response make the i-th message, equal for equal i. The checks
	// set the body of a message that is a pointer to a struct with a field Body
	// of type io.ReadCloser. Both are optional for *Request and *Response.
	Request  func(i int) Req
	Response func(i int) Rsp

	Limit   int           // the maximum of requests in flight; 0: no limit
	Queue   int           // the maximum of waiting requests; 0: the layer rejects; with Limit at most 100 000
	MaxWait time.Duration // the longest wait in Queue; 0: until ctx ends

	// MaxAttempts is the maximum of attempts for a request; 0 means 1. The
	// layer may pause between attempts, and returns the last rejection.
	MaxAttempts int

	// Pause is the longest time between two attempts. The default is a second.
	Pause time.Duration

	// Retryable turns rsp into a response that the layer retries. It is nil for
	// a layer that retries after errors only. Such a layer must retry after
	// an error that matches layer.ErrAttemptTimeout.
	Retryable func(rsp Rsp)

	// RewritesMessages declares that the inner service receives other requests,
	// or the caller other responses, than those of Request and Response. It is
	// not needed for a layer that only adds to messages.
	RewritesMessages bool

	// AtReturn declares that a response ends when Call returns. By default it
	// ends with its body.
	AtReturn bool

	// Ended, if not nil, returns the number of responses that the layer has counted as ended.
	Ended func() int

	// OutlivesInner declares that the layer is not closed when its inner service
	// is closed. An example is a balancer, which may find another endpoint.
	OutlivesInner bool

	// Transparent declares that the layer changes no request, context, response
	// or error, and that it does not allocate for a call.
	Transparent bool

	// NoAllocs declares that the layer does not allocate for a call whose response has no body.
	// It is ignored under the race detector, because sync.Pool drops items there.
	NoAllocs bool

	callers    int  // number of concurrent callers; the default is maxCallers
	queueBelow bool // requests that Limit admits may wait in a queue below it
}

// Service is the [ServiceOf] of a service for any requests.
type Service = ServiceOf[*Request, *Response]

// ServiceOf is a service under test without an inner service that the checks
// control, such as an endpoint. It must run in a testing/synctest bubble. A
// [Network] serves for its connections.
type ServiceOf[Req, Rsp any] struct {
	// New makes a service that is ready. Its goroutines end with ctx.
	New func(ctx context.Context) layer.Service[Req, Rsp]

	// Request makes the i-th request, as in LayerOf.
	Request func(i int) Req

	// Fill takes all capacity of svc, and returns a function that frees it. It
	// is nil for a service that is always ready.
	Fill func(svc layer.Service[Req, Rsp]) (free func())

	// Served returns the number of requests that svc has admitted. Optional.
	Served func(svc layer.Service[Req, Rsp]) int

	// Close closes svc. It is nil for a service that never closes.
	Close func(svc layer.Service[Req, Rsp])
}

// subject is the validated form of a spec. For a service, only Request,
// MaxAttempts, Pause and callers of the LayerOf are set.
type subject[Req, Rsp any] struct {
	LayerOf[Req, Rsp]
	service *ServiceOf[Req, Rsp] // nil for a layer

	background bool // goroutines may run until the context of the subject ends
	bodies     bool // responses have bodies
	fills      bool // the checks can take all capacity
	closes     bool // the checks can close the subject
}

func (s LayerOf[Req, Rsp]) conform(t *testing.T) { run(t, s.subject) }

func (s ServiceOf[Req, Rsp]) conform(t *testing.T) { run(t, s.subject) }

func (s LayerOf[Req, Rsp]) subject() (*subject[Req, Rsp], error) {
	background := s.Layer == nil
	if s.New == nil && s.Layer != nil {
		s.New = func(_ context.Context, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] { return s.Layer(next) }
	}
	s.Request, s.Response = orDefault(s.Request, newRequest), orDefault(s.Response, newResponse)
	switch {
	case s.New == nil:
		return nil, errors.New("the spec has neither a Layer nor a New")
	case s.Request == nil || s.Response == nil:
		return nil, errors.New("the spec has no factory for its requests or responses")
	}
	if err := cmp.Or(s.validate(), checkFactory("Request", s.Request), checkFactory("Response", s.Response)); err != nil {
		return nil, err
	}
	s.callers, s.Pause = cmp.Or(s.callers, maxCallers), cmp.Or(s.Pause, time.Second)
	s.MaxAttempts = max(s.MaxAttempts, 1)
	return &subject[Req, Rsp]{
		LayerOf: s, background: background, bodies: layer.HasBody[Rsp](), fills: true, closes: !s.OutlivesInner,
	}, nil
}

func (s ServiceOf[Req, Rsp]) subject() (*subject[Req, Rsp], error) {
	s.Request = orDefault(s.Request, newRequest)
	switch {
	case s.New == nil:
		return nil, errors.New("the spec has no New")
	case s.Request == nil:
		return nil, errors.New("the spec has no factory for its requests")
	}
	if err := checkFactory("Request", s.Request); err != nil {
		return nil, err
	}
	return &subject[Req, Rsp]{
		LayerOf: LayerOf[Req, Rsp]{Request: s.Request, MaxAttempts: 1, callers: maxCallers},
		service: &s, background: true, bodies: layer.HasBody[Rsp](), fills: s.Fill != nil, closes: s.Close != nil,
	}, nil
}

// maxHeld is the maximum of requests that the checks hold in Limit and Queue.
const maxHeld = 100_000

func (s LayerOf[Req, Rsp]) validate() error {
	for name, n := range map[string]int64{
		"Limit": int64(s.Limit), "Queue": int64(s.Queue), "MaxWait": int64(s.MaxWait),
		"MaxAttempts": int64(s.MaxAttempts), "Pause": int64(s.Pause),
	} {
		if n < 0 {
			return fmt.Errorf("%s of the spec is negative", name)
		}
	}
	if s.Limit > maxHeld || s.Queue > maxHeld-s.Limit {
		return fmt.Errorf("Limit and Queue of the spec are more than %d together", maxHeld)
	}
	return nil
}

// checkFactory returns an error if factory returns a nil message.
func checkFactory[T any](name string, factory func(int) T) error {
	if isStructPointer[T]() && reflect.ValueOf(factory(1)).IsNil() {
		return fmt.Errorf("%s of the spec returns nil", name)
	}
	return nil
}

// orDefault returns factory or, if that is nil, usual if it has the same type.
func orDefault[T, U any](factory func(int) T, usual func(int) U) func(int) T {
	if factory != nil {
		return factory
	}
	f, _ := any(usual).(func(int) T)
	return f
}

func (s *subject[Req, Rsp]) isLayer() bool { return s.service == nil }

// admits reports whether the subject itself decides on admission.
func (s *subject[Req, Rsp]) admits() bool { return s.Limit > 0 || s.Queue > 0 }

// retryTime is the longest total pause between the attempts of a request.
func (s *subject[Req, Rsp]) retryTime() time.Duration {
	return time.Duration(s.MaxAttempts-1) * s.Pause
}
