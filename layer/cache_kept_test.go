package layer_test

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A caller that keeps the Service of a key does not keep the idle service in memory.
func TestCacheIdleServiceIsCollected(t *testing.T) {
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
