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

// Spec describes the service or layer under test to [Run]. It is a [Layer], [LayerOf],
// [Service] or [ServiceOf].
type Spec interface {
	conform(t *testing.T)
}

// Layer is the [LayerOf] for a layer that works with any message types:
//
//	layertest.Run(t, layertest.Layer{
//		Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//		Limit: 8,
//	})
type Layer = LayerOf[*Request, *Response]

// LayerOf is a layer under test and its declared properties. Every check applies the
// layer to a new inner service, which the check controls. Limit plus Queue must be at most
// 100,000.
type LayerOf[Req, Rsp any] struct {
	// Layer is the layer under test.
	Layer layer.Layer[Req, Rsp]

	// New is used instead of Layer if the layer needs a context. An example is a balancer that
	// uses next as each of its endpoints. The layer's goroutines must end with ctx. The layer's
	// Ready may return nil until next rejects a call, even if next is not ready.
	New func(ctx context.Context, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]

	// Request and Response return the i-th message. Messages with equal i must be equal. The
	// checks set a message's body if its type has one, see layer.HasBody. A nil field means the
	// default message, which only the types *Request and *Response have. Give an *http.Response a
	// Header, as net/http does, if the layer sets one.
	Request  func(i int) Req
	Response func(i int) Rsp

	Limit   int           // the largest number of requests in flight; 0 means no limit
	Queue   int           // the largest number of waiting requests; 0 means that none waits
	MaxWait time.Duration // the longest wait in Queue; 0 means until ctx ends

	// MaxAttempts is the largest number of attempts for a request; 0 means 1. The layer may
	// pause between attempts. If all attempts are rejected, it must return the last
	// rejection.
	MaxAttempts int

	// Pause is the longest time between two attempts. 0 means a second.
	Pause time.Duration

	// Retryable changes rsp to a response that the layer retries. It is nil if the layer
	// retries only after errors. A layer with MaxAttempts above 1 must retry after an error
	// that matches layer.ErrAttemptTimeout.
	Retryable func(rsp Rsp)

	// RewritesMessages declares that the layer replaces requests or responses by other
	// ones. A layer that only adds to messages does not need this field.
	RewritesMessages bool

	// AtReturn declares that a response ends when Call returns. By default a response ends
	// with its body.
	AtReturn bool

	// Ended returns how many responses the layer has counted as ended. If it is nil, this number
	// is not checked.
	Ended func() int

	// OutlivesInner declares that the layer does not reject with ErrClosed when its inner
	// service is closed. An example is a balancer, which may find another endpoint.
	OutlivesInner bool

	// Transparent declares that the layer changes no request, context, response or error,
	// and that it does not allocate for a call.
	Transparent bool

	// NoAllocs declares that the layer does not allocate for a call with a response without
	// a body. It is ignored under the race detector, because sync.Pool drops items there.
	NoAllocs bool

	// QueueBelow declares that requests which Limit admits may wait in a queue below the limit.
	QueueBelow bool

	// Callers is the number of concurrent callers in the checks; 0 means 1000. A smaller number
	// shortens the tests of many layers, and finds fewer races.
	Callers int
}

// Service is the [ServiceOf] for a service that works with any requests.
type Service = ServiceOf[*Request, *Response]

// ServiceOf is a service under test without an inner service, such as an endpoint. It must work
// in a testing/synctest bubble. Its connections may use a [Network].
type ServiceOf[Req, Rsp any] struct {
	// New returns a service that is ready. The service's goroutines must end with ctx.
	New func(ctx context.Context) layer.Service[Req, Rsp]

	// Request returns the i-th request, as in [LayerOf].
	Request func(i int) Req

	// Fill takes all capacity of svc, and returns a function that frees it. It is nil if
	// the service is always ready.
	Fill func(svc layer.Service[Req, Rsp]) (free func())

	// Served returns how many requests svc has admitted. If it is nil, this number is not
	// checked.
	Served func(svc layer.Service[Req, Rsp]) int

	// Close closes svc, so that svc rejects all requests with ErrClosed. It is nil if the
	// service cannot be closed.
	Close func(svc layer.Service[Req, Rsp])
}

// subject is the layer or service under test: its validated spec with all defaults. For a service,
// only the fields Request, MaxAttempts and Callers of the embedded LayerOf are set.
type subject[Req, Rsp any] struct {
	LayerOf[Req, Rsp]
	service   *ServiceOf[Req, Rsp] // nil for a layer
	requests  messages[Req]
	responses messages[Rsp] // without a factory for a service

	background bool // the subject has a context, and its goroutines may run until that ends
	bodies     bool // responses have bodies
	fills      bool // the checks can take all capacity
	closes     bool // the checks can close the subject
}

func (s LayerOf[Req, Rsp]) conform(t *testing.T) { run(t, s.subject) }

func (s ServiceOf[Req, Rsp]) conform(t *testing.T) { run(t, s.subject) }

// subject returns what the checks need to know about the layer, with defaults for what the spec leaves
// out.
func (s LayerOf[Req, Rsp]) subject() (*subject[Req, Rsp], error) {
	// Only a layer that was made by New has a context, and may run goroutines until that ends.
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
	s.Callers, s.Pause = cmp.Or(s.Callers, defaultCallers()), cmp.Or(s.Pause, time.Second)
	s.MaxAttempts = max(s.MaxAttempts, 1)
	return &subject[Req, Rsp]{
		LayerOf: s, requests: messagesOf(s.Request), responses: messagesOf(s.Response),
		background: background, bodies: layer.HasBody[Rsp](), fills: true, closes: !s.OutlivesInner,
	}, nil
}

// subject returns what the checks need to know about the service, with defaults for what the spec
// leaves out.
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
	// A service is a layer's counterpart without an inner service: nobody supplies responses, and it sends once.
	return &subject[Req, Rsp]{
		LayerOf: LayerOf[Req, Rsp]{Request: s.Request, MaxAttempts: 1, Callers: defaultCallers()},
		service: &s, requests: messagesOf(s.Request), responses: messagesOf[Rsp](nil),
		background: true, bodies: layer.HasBody[Rsp](), fills: s.Fill != nil, closes: s.Close != nil,
	}, nil
}

// maxHeld is the largest number of requests that the checks hold in Limit and Queue
// together.
const maxHeld = 100_000

// validate returns an error if a number in the spec is out of range.
func (s LayerOf[Req, Rsp]) validate() error {
	for name, n := range map[string]int64{
		"Limit": int64(s.Limit), "Queue": int64(s.Queue), "MaxWait": int64(s.MaxWait),
		"MaxAttempts": int64(s.MaxAttempts), "Pause": int64(s.Pause), "Callers": int64(s.Callers),
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

// checkFactory returns an error if the spec's function with the given name returns a nil message.
func checkFactory[T any](name string, factory func(int) T) error {
	if isStructPointer[T]() && reflect.ValueOf(factory(1)).IsNil() {
		return fmt.Errorf("%s of the spec returns nil", name)
	}
	return nil
}

// orDefault returns factory if it is not nil. Otherwise it returns usual, which is the default
// factory. If usual makes messages of another type than T, it returns nil.
func orDefault[T, U any](factory func(int) T, usual func(int) U) func(int) T {
	if factory != nil {
		return factory
	}
	f, _ := any(usual).(func(int) T)
	return f
}

func (s *subject[Req, Rsp]) isLayer() bool { return s.service == nil }

// admits reports whether the subject itself decides on admission, by a limit or a queue.
func (s *subject[Req, Rsp]) admits() bool { return s.Limit > 0 || s.Queue > 0 }

// retryTime returns the sum of the longest pauses between one request's attempts.
func (s *subject[Req, Rsp]) retryTime() time.Duration {
	return time.Duration(s.MaxAttempts-1) * s.Pause
}
