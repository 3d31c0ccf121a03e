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

func TestCacheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		made := 0
		c := layer.NewCache(life, func(context.Context, string) layer.Service[int, int] {
			made++
			return layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n, nil })
		}, layer.CachePolicy{IdleTimeout: time.Second})
		keys := func() any { return c.Describe().State.Get("keys") }

		ctx, letGo := context.WithCancel(t.Context())
		require.NoError(t, c.Pin(ctx, "a"))
		require.NoError(t, c.Pin(ctx, "a"), "twice")
		_, err := c.Service("b").Call(t.Context(), 1)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.EqualValues(t, 1, keys(), "only what is held is there")
		_, err = c.Service("a").Call(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, 2, made)

		letGo()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 0, keys())
		require.ErrorIs(t, c.Pin(ctx, "a"), layer.ErrNotReady)
		end()
		synctest.Wait()
		require.ErrorIs(t, c.Pin(t.Context(), "a"), layer.ErrClosed)
	})
}
