package layer_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A key that no map finds again would be kept for ever.
func TestCacheRefusesNaN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		c := layer.NewCache(ctx, func(context.Context, float64) layer.Service[int, int] {
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, layer.CachePolicy{Capacity: 10})
		svc := c.Service(math.NaN())
		_, err := svc.Call(ctx, 1)
		require.ErrorIs(t, err, layer.ErrNoRoute)
		require.ErrorContains(t, err, "the key is not equal to itself")
		require.ErrorIs(t, svc.Ready(ctx), layer.ErrClosed)
		require.ErrorIs(t, c.Pin(ctx, math.NaN()), layer.ErrNoRoute)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.EqualValues(t, 0, c.Describe().State.Get("keys"))
	})
}

// A caller that keeps the Service of a key does not keep the idle service in memory.
func TestCacheLetsGoOfWhatIsIdle(t *testing.T) {
	var last weak.Pointer[heavy]
	c := layer.NewCache(t.Context(), func(context.Context, string) layer.Service[int, int] {
		h := new(heavy)
		last = weak.Make(h)
		return h
	}, layer.CachePolicy{IdleTimeout: time.Millisecond})
	svc := c.Service("a")
	for range 2 {
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			runtime.GC()
			return last.Value() == nil
		}, time.Minute, time.Millisecond)
	}
	runtime.KeepAlive(svc)
}

type heavy struct{ _ [1 << 20]byte }

func (*heavy) Ready(context.Context) error                { return nil }
func (*heavy) Call(_ context.Context, n int) (int, error) { return n, nil }
