package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkFallback(b *testing.B) {
	policy := layer.FallbackPolicy[int, int]{
		Handle: func(context.Context, int, layer.Outcome[int]) (int, error) { return 1, nil },
	}
	b.Run("unused", func(b *testing.B) { call(b, layer.Fallback(policy)(layer.Func[int, int](echo))) })
	b.Run("used", func(b *testing.B) {
		call(b, layer.Fallback(policy)(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errBreaker })))
	})
}
