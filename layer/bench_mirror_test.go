package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
)

type numbers struct{ layer.Editor[int, int] }

func (numbers) TeeRequest(req int, _ int64, whole func(copied int, ok bool)) int {
	whole(req, true)
	return req
}

func BenchmarkMirror(b *testing.B) {
	inner := layer.Func[int, int](echo)
	for name, p := range map[string]layer.MirrorPolicy[int]{
		"full":      {MaxInFlight: 1}, // most of them beyond it
		"share":     {Fraction: 1e-9},
		"others":    {Match: func(int) bool { return false }},
		"thousands": {Fraction: 1e-3},
	} {
		b.Run(name, func(b *testing.B) {
			call(b, layer.Mirror(b.Context(), layer.Service[int, int](inner), numbers{}, p)(inner))
		})
	}
}
