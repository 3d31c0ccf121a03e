package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestCachePolicyValidate(t *testing.T) {
	require.NoError(t, layer.CachePolicy{}.Validate())
	require.NoError(t, layer.CachePolicy{IdleTimeout: time.Second, Capacity: 1}.Validate())
	require.EqualError(t, layer.CachePolicy{IdleTimeout: -1}.Validate(), "CachePolicy.IdleTimeout is -1ns, must be at least 0")
	require.EqualError(t, layer.CachePolicy{Capacity: -1}.Validate(), "CachePolicy.Capacity is -1, must be at least 0")
}

func TestCachePolicyDefaults(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := &cacheMaker{made: make(map[string][]*cacheKept)}
	state := layer.NewCache(ctx, m.Make, layer.CachePolicy{}).Describe().State
	require.Equal(t, time.Minute, state.Get("idle"))
	require.Equal(t, 10_000, state.Get("capacity"))
}

// If the service is nil, the next request makes it again. The key takes no place in the
// cache, and the error is not a rejection for which a queue would wait.
func TestCacheNilService(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 1}, func(t *testing.T, ctx context.Context, _ *cacheOf, m *cacheMaker) {
		asked := 0
		c := layer.NewCache(ctx, func(ctx context.Context, key string) cacheService {
			if asked++; key == "no" {
				return nil
			}
			return m.Make(ctx, key)
		}, layer.CachePolicy{Capacity: 1})
		for range 3 {
			_, err := c.Service("no").Call(ctx, "")
			require.ErrorIs(t, err, layer.ErrNoRoute)
			require.NotErrorIs(t, err, layer.ErrNotReady)
			require.EqualError(t, err, "cache no: no route: no service for this key")
		}
		err := layer.Poll(c.Service("no"))
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.NotErrorIs(t, err, layer.ErrClosed)
		require.ErrorContains(t, err, "no service for this key")
		require.Equal(t, 4, asked)
		require.EqualValues(t, 0, c.Describe().State.Get("keys"))
		require.Equal(t, "yes1", cacheUse(t, ctx, c.Service("yes"), "1"))
	})
}

func TestCacheCountsRejections(t *testing.T) {
	inCache(t, layer.CachePolicy{Capacity: 1}, func(t *testing.T, ctx context.Context, c *cacheOf, _ *cacheMaker) {
		cacheUse(t, ctx, c.Service("a"), "")
		for range 3 {
			require.Error(t, cacheErr(c.Service("b")))
		}
		require.EqualValues(t, 3, c.Describe().State.Get("rejected"))
	})
}
