package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// Ready does not know the key, so a LimitBy is not a limit to the kit: it is
// run with room for what the kit sends.
func TestConformLimitBy(t *testing.T) {
	for name, key := range map[string]func(*layertest.Request) int{
		"a key each": func(req *layertest.Request) int { return req.ID },
		"few keys":   func(req *layertest.Request) int { return req.ID % 3 },
		"one key":    func(*layertest.Request) int { return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				Layer:    layer.LimitBy[int, *layertest.Request, *layertest.Response](key, 1_000_000),
				NoAllocs: true,
			})
		})
	}
}
