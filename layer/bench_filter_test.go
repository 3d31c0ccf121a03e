package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkFilter(b *testing.B) {
	call(b, layer.Filter[int, int](func(int) error { return nil })(layer.Func[int, int](echo)))
}

func BenchmarkIf(b *testing.B) {
	through := func(next layer.Service[int, int]) layer.Service[int, int] { return noop{next} }
	for name, holds := range map[string]bool{"past": false, "through": true} {
		b.Run(name, func(b *testing.B) {
			call(b, layer.If(func(int) bool { return holds }, through)(layer.Func[int, int](echo)))
		})
	}
}
