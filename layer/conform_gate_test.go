package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformGated(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Layer{Layer: layer.Gated[Q, R](layer.NewGate()), NoAllocs: true})
}

// shutGate is a gate that can be reached through the service.
type shutGate struct {
	layer.Service[*layertest.Request, *layertest.Response]
	gate *layer.Gate
}

func TestConformGateShut(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	for name, fill := range map[string]func(g *layer.Gate){
		"shut": (*layer.Gate).Close,
		"limited": func(g *layer.Gate) {
			g.Limit(1)
			g.TryAcquire()
		},
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Service{
				New: func(context.Context) layer.Service[Q, R] {
					g := layer.NewGate()
					return shutGate{layer.Gated[Q, R](g)(layer.Func[Q, R](func(_ context.Context, req Q) (R, error) {
						return &layertest.Response{ID: req.ID}, nil
					})), g}
				},
				Fill: func(svc layer.Service[Q, R]) func() {
					g := svc.(shutGate).gate
					fill(g)
					return g.Open
				},
			})
		})
	}
}
