package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// A router is always ready, so it is checked as a service. It returns the rejections of its
// routes.
func TestRouterConforms(t *testing.T) {
	key := func(req *layertest.Request) (int, error) { return req.ID % 3, nil }
	answer := layer.Func[*layertest.Request, *layertest.Response](
		func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
			return &layertest.Response{ID: req.ID}, nil
		})
	for name, svc := range map[string]func(context.Context) cacheKitService{
		"plain": func(context.Context) cacheKitService {
			return layer.Router(key, func(int) cacheKitService { return answer })
		},
		"with a cache": func(ctx context.Context) cacheKitService {
			mk := func(context.Context, int) cacheKitService { return answer }
			return layer.NewCache(ctx, mk, layer.CachePolicy{}).Router(key)
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, layertest.Service{New: svc}) })
	}
}
