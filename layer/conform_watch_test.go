package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestWatchConforms(t *testing.T) {
	type service = layer.Service[mapKitRequest, mapKitResponse]
	layertest.Conform(t, layertest.Layer{
		Outlives: true, NoAllocs: true,
		New: func(ctx context.Context, next service) service {
			return layer.NewWatch(ctx, 1, func(context.Context, int) service { return next })
		},
	})
}

// The second configuration is no less well served than the first.
func TestWatchConformsAfterAChange(t *testing.T) {
	type service = layer.Service[mapKitRequest, mapKitResponse]
	layertest.Conform(t, layertest.Layer{
		Outlives: true, NoAllocs: true,
		New: func(ctx context.Context, next service) service {
			w := layer.NewWatch(ctx, 1, func(_ context.Context, c int) service {
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
