package discover_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

func echo(_ context.Context, req int) (int, error) { return req, nil }

func fullCache(tb testing.TB) (c *discover.Cache[string, int, int], key string) {
	tb.Helper()
	mk := func(context.Context, string) layer.Service[int, int] { return layer.Func[int, int](echo) }
	c = discover.NewCache(tb.Context(), mk)
	for i := range 1000 {
		key = fmt.Sprintf("service-%d.default.svc.cluster.local:80", i)
		_, err := c.Service(key).Call(tb.Context(), 1)
		require.NoError(tb, err)
	}
	return c, key
}

func TestCacheHitAllocatesNothing(t *testing.T) {
	c, key := fullCache(t)
	ctx := context.Background()
	kept := c.Service(key)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = c.Service(key).Call(ctx, 1)
		_, _ = kept.Call(ctx, 1)
	}))
}

func BenchmarkCacheHit(b *testing.B) {
	c, key := fullCache(b)
	ctx := context.Background()
	b.Run("looked up", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = c.Service(key).Call(ctx, 1)
		}
	})
	b.Run("kept", func(b *testing.B) {
		svc := c.Service(key)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, 1)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = c.Service(key).Call(ctx, 1)
			}
		})
	})
}
