package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkGate(b *testing.B) {
	call(b, layer.Gated[int, int](new(layer.Gate))(layer.Func[int, int](echo)))
}
