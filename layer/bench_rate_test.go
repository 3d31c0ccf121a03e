package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkRateLimit(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	const much = 1e9
	b.Run("serial", func(b *testing.B) { call(b, layer.RateLimit[int, int](much, much)(leaf)) })
	b.Run("full", func(b *testing.B) { benchRefusals(b, context.Background(), layer.RateLimit[int, int](0, 0)(leaf)) })
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.RateLimit[int, int](much, much)(leaf))
	})
}

func BenchmarkRateLimitBy(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	const much = 1e9
	b.Run("serial", func(b *testing.B) { call(b, layer.RateLimitBy[string, int, int](tenantOf, much, much, 0)(leaf)) })
	b.Run("full", func(b *testing.B) {
		benchRefusals(b, context.Background(), layer.RateLimitBy[string, int, int](tenantOf, 0, 0, 0)(leaf))
	})
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.RateLimitBy[string, int, int](tenantOf, much, much, 0)(leaf))
	})
	b.Run("new keys", func(b *testing.B) {
		svc := layer.RateLimitBy[int, int, int](func(req int) int { return req }, much, 1, 1<<12)(leaf)
		ctx := context.Background()
		next := 0
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, next)
			next++
		}
	})
}
