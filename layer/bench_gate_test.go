package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkGate(b *testing.B) {
	gate := layer.NewGate()
	b.Run("enter", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			gate.TryAcquire()
		}
	})
	b.Run("layer", func(b *testing.B) { call(b, layer.Gated[int, int](gate)(layer.Func[int, int](echo))) })
}
