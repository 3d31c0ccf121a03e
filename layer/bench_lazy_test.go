package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkLazy(b *testing.B) {
	call(b, layer.Lazy(func() layer.Service[int, int] { return layer.Func[int, int](echo) }))
}
