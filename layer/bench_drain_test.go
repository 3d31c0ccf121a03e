package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkDrain(b *testing.B) {
	svc := layer.Drain[int, int](layer.NewDrainer())(layer.Func[int, int](echo))
	b.Run("serial", func(b *testing.B) { call(b, svc) })
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = svc.Call(context.Background(), 1)
			}
		})
	})
	b.Run("draining", func(b *testing.B) {
		d := layer.NewDrainer()
		svc := layer.Drain[int, int](d)(layer.Func[int, int](echo))
		if err := d.Drain(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = svc.Call(context.Background(), 1)
		}
	})
}
