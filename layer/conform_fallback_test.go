package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The checks expect the errors of inner, so Handle returns them.
func TestConformFallback(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Layer{
		NoAllocs: true,
		Layer: layer.Fallback(layer.FallbackPolicy[Q, R]{
			Handle: func(_ context.Context, _ Q, o layer.Outcome[R]) (R, error) { return o.Response, o.Err },
		}),
	})
}
