package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestFilterConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Layer:       layer.Filter[mapKitRequest, mapKitResponse](func(mapKitRequest) error { return nil }),
		Transparent: true,
	})
}
