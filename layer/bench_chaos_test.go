package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
)

func BenchmarkChaos(b *testing.B) {
	var thrown layer.KillSwitch
	thrown.Throw()
	p := layer.ChaosPolicy[int]{Share: 1e-9, Err: layer.ErrInjected, TTL: time.Hour}
	b.Run("on", func(b *testing.B) { call(b, layer.Chaos[int, int](p)(layer.Func[int, int](echo))) })
	p.Kill = &thrown
	b.Run("off", func(b *testing.B) { call(b, layer.Chaos[int, int](p)(layer.Func[int, int](echo))) })
}
