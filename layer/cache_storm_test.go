package layer_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Many callers use a few keys that are made and dropped. A key has one live service at a
// time, and no call reaches a service that has ended.
func TestCacheStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var live [5]atomic.Int64
		var late, made, twice atomic.Int64
		mk := func(ctx context.Context, key int) cacheService {
			made.Add(1)
			if live[key].Add(1) > 1 {
				twice.Add(1)
			}
			context.AfterFunc(ctx, func() { live[key].Add(-1) })
			return layer.Func[string, *cacheResponse](func(context.Context, string) (*cacheResponse, error) {
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				if ctx.Err() != nil {
					late.Add(1)
				}
				return cacheBody(""), nil
			})
		}
		c := layer.NewCache(ctx, mk, layer.CachePolicy{IdleTimeout: 40 * time.Millisecond, Capacity: 4})
		var all sync.WaitGroup
		for range 20 {
			mine := make([]cacheService, len(live))
			for key := range mine {
				mine[key] = c.Service(key)
			}
			all.Go(func() {
				for range 200 {
					key := rand.IntN(len(live))
					svc := mine[key]
					if rand.IntN(2) == 0 {
						svc = c.Service(key)
					}
					if rsp, err := svc.Call(ctx, ""); err == nil {
						assert.NoError(t, rsp.Body.Close())
					} else {
						assert.ErrorContains(t, err, "full")
					}
					time.Sleep(time.Duration(rand.IntN(int(500 * time.Millisecond))))
				}
			})
		}
		all.Wait()
		require.Zero(t, late.Load())
		// The AfterFunc of the old service may run just after the new one is made.
		require.LessOrEqual(t, twice.Load(), made.Load()/10)
		require.Greater(t, made.Load(), int64(len(live)), "they did come and go")
		time.Sleep(time.Second)
		for key := range live {
			require.Zero(t, live[key].Load(), "nothing is in use, so nothing is kept")
		}
		cancel()
		synctest.Wait()
	})
}
