package layer_test

import (
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestTimeoutsConform(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	for name, spec := range map[string]layertest.Layer{
		"total": {Layer: layer.Timeout[Q, R](time.Minute)},
		"none":  {Layer: layer.Timeout[Q, R](0), Transparent: true},
		"head":  {Layer: layer.ResponseHeaderTimeout[Q, R](time.Minute)},
		"idle":  {Layer: layer.IdleTimeout[Q, R](time.Minute)},
		"all": {Layer: layer.NewStack[Q, R]().
			With("total", layer.Timeout[Q, R](3*time.Minute)).
			With("head", layer.ResponseHeaderTimeout[Q, R](2*time.Minute)).
			With("idle", layer.IdleTimeout[Q, R](time.Minute)).Layer()},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
