package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestFilterConforms(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Layer:       layer.Filter[mapKitRequest, mapKitResponse](func(mapKitRequest) error { return nil }),
		Transparent: true,
	})
}

func TestIfConforms(t *testing.T) {
	odd := func(req mapKitRequest) bool { return req.ID%2 == 1 }
	pass := func(next layer.Service[mapKitRequest, mapKitResponse]) layer.Service[mapKitRequest, mapKitResponse] {
		return next
	}
	for name, spec := range map[string]layertest.Layer{
		"through nothing much": {Layer: layer.If(odd, pass), Transparent: true},
		"through a timeout":    {Layer: layer.If(odd, layer.Timeout[mapKitRequest, mapKitResponse](time.Minute))},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
