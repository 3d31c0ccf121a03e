package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestWatchConforms(t *testing.T) {
	type service = layer.Service[mapKitRequest, mapKitResponse]
	layertest.Run(t, layertest.Layer{
		OutlivesInner: true, NoAllocs: true,
		New: func(ctx context.Context, next service) service {
			return layer.NewReloadable(ctx, 1, func(context.Context, int) service { return next })
		},
	})
}

// The second configuration is no less well served than the first.
func TestWatchConformsAfterAChange(t *testing.T) {
	type service = layer.Service[mapKitRequest, mapKitResponse]
	layertest.Run(t, layertest.Layer{
		OutlivesInner: true, NoAllocs: true,
		New: func(ctx context.Context, next service) service {
			w := layer.NewReloadable(ctx, 1, func(_ context.Context, c int) service {
				if c == 1 {
					return nil
				}
				return next
			})
			if err := w.Set(2); err != nil {
				t.Error(err)
			}
			return w
		},
	})
}
