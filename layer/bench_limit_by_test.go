package layer_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/gotower/gotower/layer"
)

// reject benchmarks calls that are all rejected.
func benchRefusals(b *testing.B, ctx context.Context, svc layer.Service[int, int]) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err == nil {
			b.Fatal("admitted")
		}
	}
}

// benchParallel benchmarks concurrent callers with separate requests.
func benchParallel(b *testing.B, ctx context.Context, svc layer.Service[int, int]) {
	b.Helper()
	var callers atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		id := int(callers.Add(1))
		for pb.Next() {
			_, _ = svc.Call(ctx, id)
		}
	})
}

func tenantOf(req int) string { return [...]string{"anna", "bert", "carla", "dora"}[req&3] }

func BenchmarkLimitBy(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	b.Run("leaf", func(b *testing.B) { call(b, leaf) })
	b.Run("serial", func(b *testing.B) { call(b, layer.LimitBy[string, int, int](tenantOf, 8)(leaf)) })
	b.Run("key in flight", func(b *testing.B) {
		inside, done := make(chan struct{}), make(chan struct{})
		svc := layer.LimitBy[string, int, int](tenantOf, 8)(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
			if req == 5 { // the same tenant as 1
				inside <- struct{}{}
				<-inside
			}
			return req, nil
		}))
		go func() {
			defer close(done)
			_, _ = svc.Call(context.Background(), 5)
		}()
		<-inside
		call(b, svc)
		inside <- struct{}{}
		<-done
	})
	b.Run("full", func(b *testing.B) {
		benchRefusals(b, context.Background(), layer.LimitBy[string, int, int](tenantOf, 0)(leaf))
	})
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.LimitBy[string, int, int](tenantOf, 8)(leaf))
	})
}
