package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkWatch(b *testing.B) {
	w := layer.NewReloadable(b.Context(), 1, func(context.Context, int) layer.Service[int, int] { return layer.Func[int, int](echo) })
	b.Run("call", func(b *testing.B) { call(b, w) })
	b.Run("set", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if err := w.Set(n); err != nil {
				b.Fatal(err)
			}
		}
	})
}
