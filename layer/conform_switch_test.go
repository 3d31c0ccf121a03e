package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The kit's service stands once in each of the two places; in the other one is
// what is never ready, or has closed.
func TestSwitchConforms(t *testing.T) {
	closed := layertest.NewMock[mapKitRequest, mapKitResponse]()
	closed.Close()
	type service = layer.Service[mapKitRequest, mapKitResponse]
	for name, spec := range map[string]layertest.Layer{
		"primary": {Transparent: true, Layer: func(next service) service {
			return layer.Failover(next, service(closed), time.Minute)
		}},
		"primary, no patience": {Transparent: true, Layer: func(next service) service {
			return layer.Failover(next, service(closed), 0)
		}},
		// A limit of nothing is not ready, and not closed: nor is the switch,
		// when its fall-back has closed.
		"fall-back": {OutlivesInner: true, Layer: func(next service) service {
			return layer.Failover(layer.Limit[mapKitRequest, mapKitResponse](0)(next), next, 0)
		}},
		"fall-back of what has closed": {Layer: func(next service) service {
			return layer.Failover(service(closed), next, time.Minute)
		}},
		"both": {Layer: func(next service) service { return layer.Failover(next, next, 0) }},
		"in a stack": {Queue: 16, MaxWait: 3 * time.Second, New: func(_ context.Context, next service) service {
			return layer.Queue[mapKitRequest, mapKitResponse](16, 3*time.Second)(layer.Failover(next, service(closed), time.Second))
		}},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
