package kitlayer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-kit/kit/endpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

var errBroken = errors.New("broken")

func double(_ context.Context, request any) (any, error) { return 2 * request.(int), nil }

func answer(v any, err error) endpoint.Endpoint {
	return func(context.Context, any) (any, error) { return v, err }
}

func TestServiceRoundTrip(t *testing.T) {
	svc := kitlayer.Service[int, int](double)
	require.NoError(t, layer.Poll(svc))
	rsp, err := svc.Call(t.Context(), 21)
	require.NoError(t, err)
	assert.Equal(t, 42, rsp)

	back, err := kitlayer.Endpoint(svc)(t.Context(), 4)
	require.NoError(t, err)
	assert.Equal(t, 8, back)
}

func TestServiceOfAny(t *testing.T) {
	svc := kitlayer.Service[any, any](answer(nil, nil))
	rsp, err := svc.Call(t.Context(), nil)
	require.NoError(t, err)
	assert.Nil(t, rsp)

	back, err := kitlayer.Endpoint(svc)(t.Context(), "whatever")
	require.NoError(t, err)
	assert.Nil(t, back)
}

func TestServiceWrongType(t *testing.T) {
	var wrong *kitlayer.TypeError

	_, err := kitlayer.Service[int, string](double).Call(t.Context(), 1)
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, kitlayer.TypeError{Message: "response", Want: "string", Got: "int"}, *wrong)
	assert.NotErrorIs(t, err, layer.ErrNotReady, "the endpoint did serve it")

	served := false
	e := kitlayer.Endpoint(layer.Func[int, int](func(context.Context, int) (int, error) { served = true; return 0, nil }))
	_, err = e(t.Context(), "1")
	require.EqualError(t, err, "kitlayer: the request is of type string, want int: use the same types on both sides")
	assert.False(t, served)
}

func TestServiceErrors(t *testing.T) {
	_, err := kitlayer.Service[int, int](answer("not an int", errBroken)).Call(t.Context(), 1)
	assert.Equal(t, errBroken, err, "the endpoint's error and not one about its response")

	rsp, err := kitlayer.Endpoint(layer.Func[int, int](func(context.Context, int) (int, error) { return 7, errBroken }))(t.Context(), 1)
	assert.Equal(t, errBroken, err)
	assert.Nil(t, rsp)
}

func TestServiceDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := kitlayer.Service[int, int](func(context.Context, any) (any, error) {
		t.Error("the endpoint heard of it")
		return nil, nil
	}).Call(ctx, 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, context.Canceled)
}

// A go-kit middleware in a stack and a layer in a go-kit chain keep their
// positions.
func TestLayerOrder(t *testing.T) {
	var seen []string
	note := func(name string) endpoint.Middleware {
		return func(next endpoint.Endpoint) endpoint.Endpoint {
			return func(ctx context.Context, request any) (any, error) {
				seen = append(seen, name)
				return next(ctx, request)
			}
		}
	}
	noteLayer := func(name string) layer.Layer[int, int] { return kitlayer.Layer[int, int](note(name)) }

	chain := endpoint.Chain(note("a"), kitlayer.Middleware(noteLayer("b")), note("c"))
	_, err := chain(double)(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c"}, seen)

	seen = nil
	svc := layer.NewStack[int, int]().With("a", noteLayer("a")).With("b", noteLayer("b")).Service(kitlayer.Service[int, int](double))
	_, err = svc.Call(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, seen)
}

// A middleware that changes the type of a message fails the call.
func TestLayerWrongType(t *testing.T) {
	toText := func(next endpoint.Endpoint) endpoint.Endpoint {
		return func(ctx context.Context, _ any) (any, error) { return next(ctx, "text") }
	}
	var wrong *kitlayer.TypeError
	_, err := kitlayer.Layer[int, int](toText)(kitlayer.Service[int, int](double)).Call(t.Context(), 1)
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, "request", wrong.Message)
}

func TestLayerNil(t *testing.T) {
	svc := kitlayer.Service[int, int](double)
	rsp, err := kitlayer.Layer[int, int](nil)(svc).Call(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, 2, rsp)
	back, err := kitlayer.Middleware[int, int](nil)(double)(t.Context(), 1)
	require.NoError(t, err)
	assert.Equal(t, 2, back)
}

// The limit of a layer applies to all calls of a middleware, and its rejection
// is the error of go-kit.
func TestLayerRejection(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	e := kitlayer.Middleware(layer.Limit[int, int](1))(func(context.Context, any) (any, error) {
		close(inside)
		<-leave
		return 1, nil
	})
	done := make(chan error)
	go func() {
		_, err := e(context.Background(), 1)
		done <- err
	}()
	<-inside
	_, err := e(t.Context(), 2)
	require.ErrorIs(t, err, layer.ErrNotReady)
	close(leave)
	require.NoError(t, <-done)
}

func TestLayerReady(t *testing.T) {
	nop := func(next endpoint.Endpoint) endpoint.Endpoint { return next }
	svc := kitlayer.Layer[int, int](nop)(layer.Limit[int, int](0)(kitlayer.Service[int, int](double)))
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
}

type failing struct{ err error }

func (f failing) Failed() error { return f.err }

type coded struct {
	error
	status int
}

func (c coded) StatusCode() int { return c.status }

func TestClassify(t *testing.T) {
	status := func(status int) layer.Outcome[any] {
		return layer.Outcome[any]{Err: fmt.Errorf("client: %w", coded{errBroken, status})}
	}
	for _, tt := range []struct {
		name string
		o    layer.Outcome[any]
		want layer.Class
	}{
		{"a response", layer.Outcome[any]{Response: 1}, layer.Success},
		{"nothing", layer.Outcome[any]{}, layer.Success},
		{"a failer that did not fail", layer.Outcome[any]{Response: failing{}}, layer.Success},
		{"a failer that failed", layer.Outcome[any]{Response: failing{errBroken}}, layer.Success},
		{"an error", layer.Outcome[any]{Err: errBroken}, layer.Retryable},
		{"an error of another type", layer.Outcome[any]{Err: fmt.Errorf("sum: %w", &kitlayer.TypeError{})}, layer.Failure},
		{"a try's timeout", layer.Outcome[any]{Err: layer.ErrAttemptTimeout}, layer.Retryable},
		{"an error with a failer", layer.Outcome[any]{Response: failing{errBroken}, Err: layer.ErrAttemptTimeout}, layer.Retryable},
		{"no status", status(0), layer.Failure},
		{"399", status(399), layer.Failure},
		{"400", status(400), layer.Success},
		{"429", status(429), layer.Throttled},
		{"499", status(499), layer.Success},
		{"500", status(500), layer.Failure},
		{"501", status(501), layer.Failure},
		{"502", status(502), layer.Retryable},
		{"504", status(504), layer.Retryable},
		{"505", status(505), layer.Failure},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, kitlayer.Classify(tt.o)) })
	}
}

func TestNilArguments(t *testing.T) {
	toNothing := func(endpoint.Endpoint) endpoint.Endpoint { return nil }
	for message, construct := range map[string]func(){
		"kitlayer: nil endpoint": func() { kitlayer.Service[int, int](nil) },
		"kitlayer: nil service":  func() { kitlayer.Endpoint[int, int](nil) },
		"kitlayer: nil factory":  func() { kitlayer.Factory[int, int](nil) },
		"kitlayer: the middleware returned a nil endpoint": func() {
			kitlayer.Layer[int, int](toNothing)(kitlayer.Service[int, int](double))
		},
	} {
		t.Run(message, func(t *testing.T) { require.PanicsWithValue(t, message, construct) })
	}
}
