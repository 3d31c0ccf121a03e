package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type cacheKitService = layer.Service[*layertest.Request, *layertest.Response]

func cacheOver(ctx context.Context, next cacheKitService) *layer.Cache[string, *layertest.Request, *layertest.Response] {
	return layer.NewCache(ctx, func(context.Context, string) cacheKitService { return next }, layer.CachePolicy{})
}

func TestCacheConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{OutlivesInner: true, NoAllocs: true, New: func(ctx context.Context, next cacheKitService) cacheKitService {
		return cacheOver(ctx, next).Service("web")
	}})
}
