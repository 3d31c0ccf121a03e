package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestClass(t *testing.T) {
	for _, tt := range []struct {
		class         layer.Class
		name          string
		failed, again bool
	}{
		{layer.Ignorable, "ignorable", false, false},
		{layer.Success, "success", false, false},
		{layer.Failure, "failure", true, false},
		{layer.Retryable, "retryable", true, true},
		{layer.Throttled, "throttled", true, true},
	} {
		assert.Equal(t, tt.name, tt.class.String())
		assert.Equal(t, tt.failed, tt.class.IsFailure(), tt.name)
		assert.Equal(t, tt.again, tt.class.IsRetryable(), tt.name)
	}
	assert.Equal(t, "unknown", layer.Class(99).String())
}

func TestDefaultClassifier(t *testing.T) {
	assert.Equal(t, layer.Success, layer.DefaultClassifier(layer.Outcome[int]{Response: 1}))
	assert.Equal(t, layer.Failure, layer.DefaultClassifier(layer.Outcome[int]{Err: io.ErrUnexpectedEOF}))
	assert.Equal(t, layer.Failure, layer.DefaultClassifier(layer.Outcome[int]{Err: layer.ErrTimeout}))
	assert.Equal(t, layer.Retryable, layer.DefaultClassifier(layer.Outcome[int]{Err: fmt.Errorf("try 1: %w", layer.ErrAttemptTimeout)}))
}

// An outcome for which the service is not responsible is classified once. Here Metrics
// is the layer.
func TestClassifierSkipsIgnorable(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		leave bool // the caller cancels before the answer
		want  string
	}{
		"an error":        {err: io.ErrUnexpectedEOF, want: "failure"},
		"injected":        {err: fmt.Errorf("fault: %w", layer.ErrInjected), want: "ignorable"},
		"the caller left": {err: context.Canceled, leave: true, want: "ignorable"},
		"the server hung up on a caller that left": {err: io.ErrUnexpectedEOF, leave: true, want: "ignorable"},
		"the server cancelled by itself":           {err: context.Canceled, want: "failure"},
		"out of time":                              {err: layer.ErrTimeout, want: "failure"},
	} {
		t.Run(name, func(t *testing.T) {
			responses := byLabel{}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			svc := layer.Metrics[int, int](layer.Instruments{Responses: responses})(
				layer.Func[int, int](func(context.Context, int) (int, error) {
					if tt.leave {
						cancel()
					}
					return 0, tt.err
				}))
			_, err := svc.Call(ctx, 1)
			assert.ErrorIs(t, err, tt.err)
			for class, n := range responses {
				want := 0
				if class == tt.want {
					want = 1
				}
				assert.EqualValues(t, want, *n, class)
			}
		})
	}
}

// A response with a body that was closed early is classified by its headers. The classifier
// gets Ended as false, so it does not expect trailers.
func TestClassifierBodyClosedEarly(t *testing.T) {
	var asked []layer.Outcome[*response]
	svc := layer.Metrics[int](layer.Instruments{}, layer.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
		asked = append(asked, o)
		return layer.Success
	}))(layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("text"), nil }))
	rsp, err := svc.Call(t.Context(), 1)
	assert.NoError(t, err)
	assert.NoError(t, rsp.Body.Close())
	assert.Equal(t, []layer.Outcome[*response]{{Response: rsp}}, asked)
}

func TestRetryAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"nil":        {nil, "0s"},
		"plain":      {errors.New("no"), "0s"},
		"silent":     {&layer.Error{Layer: "limit", Kind: layer.ErrNotReady}, "0s"},
		"own":        {&layer.Error{Layer: "rate", RetryAfter: 2e9}, "2s"},
		"of cause":   {&layer.Error{Layer: "queue", Err: fmt.Errorf("limited: %w", &layer.Error{Layer: "rate", RetryAfter: 3e9})}, "3s"},
		"the longer": {&layer.Error{Layer: "breaker", RetryAfter: 4e9, Err: &layer.Error{Layer: "rate", RetryAfter: 3e9}}, "4s"},
	} {
		t.Run(name, func(t *testing.T) {
			after, ok := layer.RetryAfter(tt.err)
			assert.Equal(t, tt.want, after.String())
			assert.Equal(t, tt.want != "0s", ok)
		})
	}
}

// A limit of response headers cancels the context of the layers below. This is not a
// cancellation by the caller: a breaker below must see that the service is slow.
func TestClassifierTimeoutOfLayerAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		responses := byLabel{}
		svc := layer.NewStack[int, int]().
			With("head", layer.ResponseHeaderTimeout[int, int](time.Second)).
			Metrics(layer.Instruments{Responses: responses}).
			Service(layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			}))
		_, err := svc.Call(t.Context(), 1)
		assert.ErrorIs(t, err, layer.ErrResponseHeaderTimeout)
		assert.EqualValues(t, 1, *responses["failure"])
		assert.Zero(t, *responses["ignorable"])
	})
}

// A classifier may return an invalid class. The request still leaves no count behind.
func TestClassifierInvalidClass(t *testing.T) {
	responses, inFlight := byLabel{}, level{new(shared)}
	svc := layer.NewStack[int, int](layer.WithClassifier(func(layer.Outcome[int]) layer.Class { return layer.Throttled + 1 })).
		Metrics(layer.Instruments{Responses: responses, InFlight: inFlight}).
		Service(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil }))
	_, err := svc.Call(t.Context(), 1)
	assert.NoError(t, err)
	assert.EqualValues(t, 1, *responses["failure"])
	assert.Zero(t, inFlight.now())
}

func TestClassifyGRPC(t *testing.T) {
	want := map[uint32]layer.Class{
		2: layer.Failure, 4: layer.Failure, 7: layer.Failure, 8: layer.Throttled,
		13: layer.Failure, 14: layer.Retryable, 15: layer.Failure,
	}
	for code := range uint32(40) {
		class, failure := want[code]
		if !failure {
			class = layer.Success
		}
		assert.Equal(t, class, layer.ClassifyGRPC(code), "%d", code)
	}
}

// classed is a service with a classifier that returns one class for all outcomes.
type classed struct {
	layer.Func[string, string]
	class layer.Class
}

func (s classed) Classifier() layer.Classifier[string] {
	return func(layer.Outcome[string]) layer.Class { return s.class }
}

type (
	embedding        struct{ layer.Service[string, string] }
	embeddingPointer struct {
		name string
		*embedding
	}
	holding struct{ inner layer.Service[string, string] }
)

func (h holding) Ready(ctx context.Context) error { return h.inner.Ready(ctx) }
func (h holding) Call(ctx context.Context, s string) (string, error) {
	return h.inner.Call(ctx, s)
}

func TestClassifierOf(t *testing.T) {
	leaf := classed{repeat, layer.Throttled}
	option := layer.WithClassifier(func(layer.Outcome[string]) layer.Class { return layer.Retryable })
	for name, tt := range map[string]struct {
		svc  layer.Service[string, string]
		want layer.Class // Ignorable: without a classifier
	}{
		"nil":                     {nil, layer.Ignorable},
		"a service without one":   {layer.Func[string, string](repeat), layer.Ignorable},
		"a service that has one":  {leaf, layer.Throttled},
		"below a layer":           {layer.Limit[string, string](1)(leaf), layer.Throttled},
		"below an embedding one":  {embedding{leaf}, layer.Throttled},
		"below pointers":          {&embeddingPointer{"", &embedding{leaf}}, layer.Throttled},
		"below several":           {embedding{layer.Timeout[string, string](time.Second)(embedding{leaf})}, layer.Throttled},
		"below nothing known":     {holding{leaf}, layer.Ignorable},
		"embedded nil":            {embedding{}, layer.Ignorable},
		"embedded nil pointer":    {embeddingPointer{}, layer.Ignorable},
		"nil pointer":             {(*embedding)(nil), layer.Ignorable},
		"below a stack":           {layer.NewStack[string, string]().Limit(1).Service(leaf), layer.Throttled},
		"a stack sees through":    {layer.NewStack[string, string]().With("own", func(s layer.Service[string, string]) layer.Service[string, string] { return holding{s} }).Service(leaf), layer.Throttled},
		"a stack's option":        {layer.NewStack[string](option).Limit(1).Service(leaf), layer.Retryable},
		"an empty stack's option": {layer.NewStack[string](option).Service(leaf), layer.Throttled},
		"the outer stack's option": {
			layer.NewStack[string, string]().Limit(1).Service(layer.NewStack[string](option).Limit(1).Service(leaf)), layer.Retryable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			classify := layer.ClassifierOf(tt.svc)
			if tt.want == layer.Ignorable {
				assert.Nil(t, classify)
				return
			}
			require.NotNil(t, classify)
			assert.Equal(t, tt.want, classify(layer.Outcome[string]{}))
		})
	}
}
