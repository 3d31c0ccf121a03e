package layer_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A breaker that is removed while open does not count in the gauge any more.
func TestBreakerGaugeAfterRemoval(t *testing.T) {
	tripped := level{new(shared)}
	made := layer.Breaker[int](layer.BreakerPolicy{ConsecutiveFailures: 1}, layer.WithMetrics[int](layer.Instruments{BreakerOpen: tripped}))
	fail := func() {
		svc := made(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, errors.New("dead") }))
		_, err := svc.Call(t.Context(), 1)
		require.Error(t, err)
		require.EqualValues(t, 1, tripped.now())
		runtime.KeepAlive(svc)
	}
	fail()
	for began := time.Now(); tripped.now() != 0; runtime.Gosched() {
		runtime.GC()
		require.Less(t, time.Since(began), time.Minute)
	}
}
