package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkFailover(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	none := layer.Limit[int, int](0)(leaf)
	b.Run("primary", func(b *testing.B) { call(b, layer.Failover[int, int](leaf, none, time.Minute)) })
	b.Run("fallback", func(b *testing.B) { call(b, layer.Failover(none, layer.Service[int, int](leaf), 0)) })
	b.Run("rejected", func(b *testing.B) {
		svc := layer.Failover(none, layer.Service[int, int](leaf), time.Hour)
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(ctx, 1)
		}
	})
}
