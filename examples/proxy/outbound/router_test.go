package outbound

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// A service that a request has used stays in the cache until a profile does not contain it or
// the router ends.
func TestRouterPin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		created := map[string]int{}
		cache := layer.NewCache(ctx, func(_ context.Context, target string) httplayer.Service {
			created[target]++
			return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
		}, layer.CachePolicy{IdleTimeout: time.Second})
		keys := func() any { return cache.Describe().State.Get("keys") }

		lifetime, over := context.WithCancel(ctx)
		var source profiles.Static
		source.Set("10.0.0.1:80", &profiles.Profile{Name: "web.example"})
		config := profiles.Config{Target: "10.0.0.1:80", Source: &source, InitialWait: time.Hour}
		r := profiles.New(lifetime, config, httplayer.HTTP{}, func(string) httplayer.Service { return nil },
			profiles.WithBackends(func(ctx context.Context, b *profiles.Backend) httplayer.Service { return pin(ctx, cache, b.Authority) }))
		call := func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web/", http.NoBody)
			require.NoError(t, err)
			rsp, err := r.Call(req.Context(), req)
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		synctest.Wait()
		assert.Empty(t, created, "unused services are not made")
		for range 5 {
			call()
			time.Sleep(time.Minute)
		}
		assert.Equal(t, map[string]int{"web.example:80": 1}, created)

		source.Set(config.Target, &profiles.Profile{Name: "other.example"})
		synctest.Wait()
		for range 5 {
			call()
			time.Sleep(time.Minute)
		}
		assert.Equal(t, map[string]int{"web.example:80": 1, "other.example:80": 1}, created)
		assert.EqualValues(t, 1, keys(), "the first service is dropped")
		over()
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 0, keys())
	})
}
