package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// An open breaker admits a request with PastBreakers, and counts it only as the probe.
func TestBreakerPastBreakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})(
			layer.Func[int, int](func(context.Context, int) (int, error) { return 0, err }))
		call := func(ctx context.Context) error { _, err := svc.Call(ctx, 0); return err }
		past := layer.PastBreakers(t.Context())

		err = errBreaker
		require.ErrorIs(t, call(past), errBreaker)
		require.ErrorIs(t, call(t.Context()), layer.ErrNotReady, "it counts while the breaker is closed")
		err = nil
		require.NoError(t, call(past))
		require.ErrorIs(t, call(t.Context()), layer.ErrNotReady, "the breaker is still open")
		time.Sleep(time.Minute)
		require.NoError(t, call(past), "the probe")
		require.Equal(t, "closed", layer.Describe(svc).State.Get("state"))
		require.NoError(t, call(t.Context()))
	})
}
