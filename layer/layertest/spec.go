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

// Spec is what [Run] is told of the service or layer under test: a [Layer]
// or [LayerOf], a [Service] or [ServiceOf].
type Spec interface {
	conform(t *testing.T)
}

// Layer is the [LayerOf] of a layer that takes any requests:
//
//	layertest.Run(t, layertest.Layer{
//		Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
//		Limit: 8,
//	})
type Layer = LayerOf[*Request, *Response]

// LayerOf is a layer under test and what it declares of itself. Every check
// applies the layer to an inner service of its own.
type LayerOf[Req, Rsp any] struct {
	// Layer is the layer under test.
	Layer layer.Layer[Req, Rsp]

	// New is used instead of Layer if the layer needs a context, such as a
	// balancer over endpoints which are all next. Its work ends with ctx. It
	// may learn from rejections that next is not ready.
	New func(ctx context.Context, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp]

	// Request and Response make the i-th message, the same one each time. A
	// message that is a pointer to a struct with a field Body of type
	// io.ReadCloser is given a body by the checks. They may be left out for
	// *Request and *Response.
	Request  func(i int) Req
	Response func(i int) Rsp

	// Limit and Queue are 100 000 at most together.

	Limit   int           // the most requests it lets be in flight; 0 if it has no limit of its own
	Queue   int           // how many requests wait in it; 0 if it refuses instead
	MaxWait time.Duration // the longest that one waits in Queue; 0 if only ctx ends the wait

	// MaxAttempts is the most attempts of a request. 0 or 1 is one. The layer
	// may pause between them, and returns the last rejection.
	MaxAttempts int

	// Pause is the longest time between two attempts: a second by default.
	Pause time.Duration

	// Again makes rsp one for which the layer sends the request again. nil says
	// that it looks at errors alone. It sends again for one that matches
	// layer.ErrAttemptTimeout, if for any.
	Retryable func(rsp Rsp)

	// Rewrites says that the layer makes other messages: that inner is not given
	// the body of the request, or what differs from one i to the next in
	// Request; or that the caller does not get what differs in Response. Nothing
	// need be said of a layer that adds to a message, or edits the rest of it.
	RewritesMessages bool

	// AtReturn says that a response ends for the layer when Call returns. The
	// default is that it ends with its body, where it has one.
	AtReturn bool

	// Ended, if not nil, returns how many responses the layer has accounted
	// for as ended, ever. A layer that counts or measures proves with it that
	// it does so once for each.
	Ended func() int

	// OutlivesInner declares that the layer is not ready, but not closed, when
	// its inner service is closed, as a balancer, which may get another one.
	OutlivesInner bool

	// Transparent says that requests, contexts, responses and errors go
	// through as they are, and that a call costs no allocation more.
	Transparent bool

	// NoAllocs says only that a call costs no allocation more, where the
	// response has no body. Neither is looked at under the race detector, which
	// makes a sync.Pool forget.
	NoAllocs bool

	crowd  int  // goroutines in a storm, where it need not be a large one
	buried bool // a queue lies below its limit, and waits where inner refuses
}

// Service is the [ServiceOf] of a service that takes any requests.
type Service = ServiceOf[*Request, *Response]

// ServiceOf is a service under test that stands on nothing the checks could
// see: an endpoint, a mock. It must be able to run in a testing/synctest
// bubble; give one that speaks over connections a [Network].
type ServiceOf[Req, Rsp any] struct {
	// New makes a service that is ready. What it starts ends with ctx.
	New func(ctx context.Context) layer.Service[Req, Rsp]

	// Request makes the i-th request. See LayerOf.
	Request func(i int) Req

	// Fill takes all capacity that svc has, and returns a function that gives
	// it back. It is nil for a service that is always ready.
	Fill func(svc layer.Service[Req, Rsp]) (free func())

	// Served returns how many requests svc has let in. It may be nil.
	Served func(svc layer.Service[Req, Rsp]) int

	// Close closes svc. It is nil for a service that never closes.
	Close func(svc layer.Service[Req, Rsp])
}

func (s LayerOf[Req, Rsp]) conform(t *testing.T) {
	subject, err := s.subject()
	if err != nil {
		t.Fatal(err)
	}
	run(t, subject)
}

func (s LayerOf[Req, Rsp]) subject() (*subject[Req, Rsp], error) {
	if s.New == nil && s.Layer != nil {
		s.New = func(_ context.Context, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] { return s.Layer(next) }
	}
	s.Request, s.Response = factory(s.Request, newRequest), factory(s.Response, newResponse)
	switch {
	case s.New == nil:
		return nil, errors.New("the spec has neither a Layer nor a New")
	case s.Request == nil || s.Response == nil:
		return nil, errors.New("the spec has no factory for its requests or responses")
	}
	if err := cmp.Or(s.bounds(), made("Request", s.Request), made("Response", s.Response)); err != nil {
		return nil, err
	}
	d := declared{
		crowd: cmp.Or(s.crowd, crowd), buried: s.buried,
		tries: max(s.MaxAttempts, 1), pause: cmp.Or(s.Pause, time.Second),
		layer: true, background: s.Layer == nil,
		limit: s.Limit, queue: s.Queue, maxWait: s.MaxWait,
		atReturn: s.AtReturn, transparent: s.Transparent, noAllocs: s.NoAllocs || s.Transparent,
		ended: s.Ended, bodies: hasBody[Rsp](), fills: true, closes: !s.OutlivesInner,
	}
	return &subject[Req, Rsp]{
		declared: d, request: s.Request, response: s.Response, again: s.Retryable, rewrites: s.RewritesMessages, apply: s.New,
	}, nil
}

func (s ServiceOf[Req, Rsp]) conform(t *testing.T) {
	subject, err := s.subject()
	if err != nil {
		t.Fatal(err)
	}
	run(t, subject)
}

func (s ServiceOf[Req, Rsp]) subject() (*subject[Req, Rsp], error) {
	s.Request = factory(s.Request, newRequest)
	switch {
	case s.New == nil:
		return nil, errors.New("the spec has no New")
	case s.Request == nil:
		return nil, errors.New("the spec has no factory for its requests")
	}
	if err := made("Request", s.Request); err != nil {
		return nil, err
	}
	d := declared{crowd: crowd, tries: 1, background: true, bodies: hasBody[Rsp](), fills: s.Fill != nil, closes: s.Close != nil}
	return &subject[Req, Rsp]{declared: d, request: s.Request, service: s}, nil
}

// mostHeld is how many requests the checks can hold in flight and in line.
const mostHeld = 100_000

// bounds returns the first invalid number of the spec.
func (s LayerOf[Req, Rsp]) bounds() error {
	for name, n := range map[string]int64{
		"Limit": int64(s.Limit), "Queue": int64(s.Queue), "MaxWait": int64(s.MaxWait),
		"MaxAttempts": int64(s.MaxAttempts), "Pause": int64(s.Pause),
	} {
		if n < 0 {
			return fmt.Errorf("%s of the spec is less than 0", name)
		}
	}
	if s.Limit > mostHeld || s.Queue > mostHeld-s.Limit {
		return fmt.Errorf("Limit and Queue of the spec are more than %d together, which the checks cannot fill: "+
			"declare a layer with smaller ones", mostHeld)
	}
	return nil
}

// made returns an error unless there is a message where the checks look into
// one.
func made[T any](name string, factory func(int) T) error {
	t := reflect.TypeFor[T]()
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct && reflect.ValueOf(factory(1)).IsNil() {
		return fmt.Errorf("%s of the spec returns nil", name)
	}
	return nil
}

// factory returns the one that was given or, for messages of this package,
// the usual one.
func factory[T, U any](given func(int) T, usual func(int) U) func(int) T {
	if given != nil {
		return given
	}
	f, _ := any(usual).(func(int) T)
	return f
}

func hasBody[T any]() bool {
	_, ok := bodyField[T]()
	return ok
}

// declared is what the checks know of their subject beforehand.
type declared struct {
	crowd         int  // goroutines in a storm
	buried        bool // requests that its limit admitted may wait for inner
	layer         bool // on top of an inner service that the checks see
	background    bool // may have goroutines that end with its context
	limit, queue  int
	maxWait       time.Duration
	tries         int
	pause         time.Duration // between two of them
	atReturn      bool
	transparent   bool
	noAllocs      bool
	ended         func() int
	bodies        bool
	fills, closes bool
}

// own reports whether the subject itself decides on admission.
func (d declared) own() bool { return d.limit > 0 || d.queue > 0 }

// patience is how long the subject may take over a request that fails each time
// at once.
func (d declared) patience() time.Duration { return time.Duration(d.tries-1) * d.pause }

func (d declared) String() string {
	return fmt.Sprintf("limit %d, queue %d", d.limit, d.queue)
}
