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
