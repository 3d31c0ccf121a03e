package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// The service of the kit takes each of the two places. The other service is
// closed, because Ready polls a fallback of an open primary.
func TestFailoverConforms(t *testing.T) {
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
		"fallback of a closed primary": {Layer: func(next service) service {
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
