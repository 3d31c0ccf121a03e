package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

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
