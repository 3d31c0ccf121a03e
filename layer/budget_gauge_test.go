package layer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// After many retries the gauge returns to the balance.
func TestRetryBudgetGaugeAfterStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := level{new(shared)}
		var fails atomic.Bool
		svc := layer.NewStack[int](layer.WithMetrics[int](layer.Instruments{Budget: shown})).
			Retry(layer.RetryPolicy[int, int]{
				Budget:   layer.NewBudget(time.Second, 0.1, 1),
				CanRetry: func(int) bool { return true },
				RetryIf:  func(o layer.Outcome[int]) bool { return o.Err != nil },
			}).
			Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				if fails.Load() {
					return 0, errors.New("down")
				}
				return req, nil
			}))
		require.EqualValues(t, 1, shown.now())
		fails.Store(true)
		for range 5 {
			_, err := svc.Call(t.Context(), 1)
			require.Error(t, err)
		}
		require.Zero(t, shown.now())
		fails.Store(false)
		for range 30 {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		require.EqualValues(t, 1, shown.now())
		require.Equal(t, 1, layer.Describe(svc).State.Get("budget"))
	})
}

// A Retry that sends each request once does not set the gauge.
func TestRetryBudgetGaugeOneAttempt(t *testing.T) {
	shown := level{new(shared)}
	layer.NewStack[int](layer.WithMetrics[int](layer.Instruments{Budget: shown})).
		Retry(layer.RetryPolicy[int, int]{MaxAttempts: 1, AttemptTimeout: time.Second}).
		Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil }))
	require.Zero(t, shown.now())
}
