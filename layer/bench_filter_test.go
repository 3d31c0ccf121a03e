package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkFilter(b *testing.B) {
	call(b, layer.Filter[int, int](func(int) error { return nil })(layer.Func[int, int](echo)))
}
