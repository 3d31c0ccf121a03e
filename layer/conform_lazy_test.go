package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestLazyConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Transparent: true,
		Layer: func(next layer.Service[mapKitRequest, mapKitResponse]) layer.Service[mapKitRequest, mapKitResponse] {
			return layer.Lazy(func() layer.Service[mapKitRequest, mapKitResponse] { return next })
		},
	})
}
