package layer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// cacheOfMany returns a cache with a thousand keys, and the last of the keys.
func cacheOfMany(tb testing.TB) (c *layer.Cache[string, int, int], key string) {
	tb.Helper()
	mk := func(context.Context, string) layer.Service[int, int] { return layer.Func[int, int](echo) }
	c = layer.NewCache(tb.Context(), mk, layer.CachePolicy{})
	for i := range 1000 {
		key = fmt.Sprintf("service-%d.default.svc.cluster.local:80", i)
		_, err := c.Service(key).Call(tb.Context(), 1)
		require.NoError(tb, err)
	}
	return c, key
}

func TestCacheHitAllocations(t *testing.T) {
	c, key := cacheOfMany(t)
	ctx := context.Background()
	kept, routed := c.Service(key), c.Router(func(int) (string, error) { return key, nil })
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = c.Service(key).Call(ctx, 1)
		_, _ = kept.Call(ctx, 1)
		_, _ = routed.Call(ctx, 1)
	}))
}

func BenchmarkCache(b *testing.B) {
	c, key := cacheOfMany(b)
	ctx := context.Background()
	b.Run("looked up", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = c.Service(key).Call(ctx, 1)
		}
	})
	b.Run("kept", func(b *testing.B) { call(b, c.Service(key)) })
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = c.Service(key).Call(ctx, 1)
			}
		})
	})
}
