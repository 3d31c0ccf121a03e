package layer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestQueueIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting gauge
		var waits histogram
		refused := byLabel{}
		measured := layer.Measured[int](layer.Instruments{Waiting: &waiting, QueueWait: &waits, Refused: refused})
		svc := layer.NewStack[time.Duration](measured).Queue(2, 5*time.Second).Limit(1).Service(
			layer.Func[time.Duration, int](func(_ context.Context, takes time.Duration) (int, error) {
				time.Sleep(takes)
				return 0, nil
			}))
		results := make(chan error, 4)
		send := func(takes time.Duration) {
			go func() {
				_, err := svc.Call(t.Context(), takes)
				results <- err
			}()
			synctest.Wait()
		}
		send(3 * time.Second)
		require.Zero(t, waiting)
		send(10 * time.Second)
		send(time.Second)
		require.EqualValues(t, 2, waiting)
		send(0)
		require.ErrorIs(t, <-results, layer.ErrNotReady, "the line is full")

		require.NoError(t, <-results)
		synctest.Wait()
		require.EqualValues(t, 1, waiting)
		require.ErrorIs(t, <-results, layer.ErrFailFast)
		assert.Zero(t, waiting)
		assert.EqualValues(t, 2, *refused["queue"], "one found it full, one waited in vain")
		assert.EqualValues(t, 2, layer.Describe(svc).State.Get("refused"))
		require.NoError(t, <-results)
		assert.Equal(t, histogram{5000, 3000}, waits, "told when it is known what came of the wait")
	})
}
