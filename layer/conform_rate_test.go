package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The kit treats rejections as a limit of requests in flight. So the rates are above
// those of the kit.
func TestConformRate(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	const much = 1_000_000
	for name, l := range map[string]layer.Layer[Q, R]{
		"rate":          layer.RateLimit[Q, R](much, much),
		"rate by key":   layer.RateLimitBy[int, Q, R](func(req Q) int { return req.ID % 100 }, much, much, 0),
		"a key for all": layer.RateLimitBy[int, Q, R](func(Q) int { return 0 }, much, much, 0),
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, layertest.Layer{Layer: l, NoAllocs: true}) })
	}
}
