package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkFaultInjection(b *testing.B) {
	p := layer.FaultPolicy[int]{Fraction: 1e-9, Err: layer.ErrInjected, TTL: time.Hour}
	b.Run("on", func(b *testing.B) { call(b, layer.FaultInjection[int, int](p)(layer.Func[int, int](echo))) })
}
