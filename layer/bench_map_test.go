package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

func BenchmarkMap(b *testing.B) {
	id := func(n int) int { return n }
	leaf := layer.Func[int, int](echo)
	for _, bb := range []struct {
		name string
		svc  layer.Service[int, int]
	}{
		{"inner", leaf},
		{"noop", noop{leaf}},
		{"request", layer.MapRequest[int, int](id)(leaf)},
		{"response", layer.MapResponse[int](id)(leaf)},
	} {
		b.Run(bb.name, func(b *testing.B) { call(b, bb.svc) })
	}
}
