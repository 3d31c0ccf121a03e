package layer_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

type noop struct{ layer.Service[int, int] }

func (n noop) Call(ctx context.Context, req int) (int, error) { return n.Service.Call(ctx, req) }

func echo(_ context.Context, req int) (int, error) { return req, nil }

func call(b *testing.B, svc layer.Service[int, int]) {
	b.Helper()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := svc.Call(ctx, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNoop(b *testing.B) {
	for _, n := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			stack := layer.NewStack[int, int]()
			for range n {
				stack = stack.With("noop", func(next layer.Service[int, int]) layer.Service[int, int] { return noop{next} })
			}
			call(b, stack.Service(layer.Func[int, int](echo)))
		})
	}
}

func BenchmarkLimit(b *testing.B) {
	svc := layer.Limit[int, int](8)(layer.Func[int, int](echo))
	b.Run("serial", func(b *testing.B) { call(b, svc) })
	b.Run("full", func(b *testing.B) {
		svc := layer.Limit[int, int](0)(layer.Func[int, int](echo))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
	})
}

func BenchmarkQueue(b *testing.B) {
	b.Run("uncontended", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().Queue(1000, time.Second).Service(layer.Func[int, int](echo)))
	})
	b.Run("over limit", func(b *testing.B) {
		call(b, layer.NewStack[int, int]().Queue(1000, time.Second).Limit(8).Service(layer.Func[int, int](echo)))
	})
	for _, callers := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d callers for 8 slots", callers), func(b *testing.B) {
			svc := layer.NewStack[int, int]().Queue(callers, time.Minute).Limit(8).
				Service(layer.Func[int, int](func(context.Context, int) (int, error) { time.Sleep(time.Microsecond); return 1, nil }))
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := svc.Call(context.Background(), 1); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// alwaysReady is ready, but rejects all requests, as a balancer does that has not noticed yet that
// its endpoints are not ready.
type alwaysReady struct{}

func (alwaysReady) Ready(context.Context) error            { return nil }
func (alwaysReady) Call(context.Context, int) (int, error) { return 0, layer.ErrNotReady }

// BenchmarkQueueRejection measures requests that inner rejects while other requests wait.
func BenchmarkQueueRejection(b *testing.B) {
	for _, callers := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			q := queueOver(alwaysReady{}, callers, 0)
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = q.Call(context.Background(), 1)
				}
			})
		})
	}
}

func BenchmarkTimeout(b *testing.B) {
	call(b, layer.Timeout[int, int](time.Second)(layer.Func[int, int](echo)))
}
