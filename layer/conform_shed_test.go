package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformShed(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	shed := layer.NewStack[Q, R]().With("shed", layer.Shed[Q, R](layer.ShedPolicy{Normal: 1}))
	for name, spec := range map[string]layertest.Layer{
		"alone":         {Layer: shed.Layer(), NoAllocs: true},
		"above a limit": {Layer: shed.Limit(8).Layer(), Limit: 8, NoAllocs: true},
		"above a queue": {Layer: shed.Queue(16, 0).Limit(4).Layer(), Limit: 4, Queue: 16},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
