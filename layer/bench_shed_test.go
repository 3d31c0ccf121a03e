package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkShed(b *testing.B) {
	leaf := layer.Func[int, int](echo)
	low := layer.WithPriority(context.Background(), layer.PriorityLow)
	b.Run("serial", func(b *testing.B) { call(b, layer.Shed[int, int](layer.ShedPolicy{})(leaf)) })
	b.Run("marked", func(b *testing.B) {
		svc := layer.Shed[int, int](layer.ShedPolicy{})(leaf)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(low, 1)
		}
	})
	b.Run("full", func(b *testing.B) {
		inside, done := make(chan struct{}), make(chan struct{})
		svc := layer.NewStack[int, int]().With("shed", layer.Shed[int, int](layer.ShedPolicy{})).Limit(1).
			Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				inside <- struct{}{}
				<-inside
				return req, nil
			}))
		go func() {
			defer close(done)
			_, _ = svc.Call(context.Background(), 1)
		}()
		<-inside
		_, _ = svc.Call(context.Background(), 1)
		benchRefusals(b, low, svc)
		inside <- struct{}{}
		<-done
	})
	b.Run("parallel", func(b *testing.B) {
		benchParallel(b, context.Background(), layer.Shed[int, int](layer.ShedPolicy{})(leaf))
	})
}
