package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// If Min and Max are equal, the layer is a Limit, which the kit can check. The limit is
// still measured.
func TestConformAdaptiveLimit(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	fixed := func(n int) layer.AdaptivePolicy { return layer.AdaptivePolicy{Min: n, Max: n} }
	for name, spec := range map[string]layertest.Layer{
		"eight":     {Layer: layer.AdaptiveLimit[Q, R](fixed(8)), Limit: 8, NoAllocs: true},
		"one":       {Layer: layer.AdaptiveLimit[Q, R](fixed(1)), Limit: 1},
		"at return": {Layer: layer.AdaptiveLimit[Q](fixed(8), layer.WithCompletion(layer.AtReturn[R])), Limit: 8, AtReturn: true},
		"below a queue": {
			Layer: layer.NewStack[Q, R]().Queue(16, 0).With("adaptive", layer.AdaptiveLimit[Q, R](fixed(4))).Layer(),
			Limit: 4, Queue: 16,
		},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
