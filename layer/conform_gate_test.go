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
	layertest.Run(t, layertest.Layer{Layer: layer.Gated[Q, R](new(layer.Gate)), NoAllocs: true})
}

// closedGate is a gate that can be reached through the service.
type closedGate struct {
	layer.Service[*layertest.Request, *layertest.Response]
	gate *layer.Gate
}

func TestConformGateClosed(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Service{
		New: func(context.Context) layer.Service[Q, R] {
			g := new(layer.Gate)
			return closedGate{layer.Gated[Q, R](g)(layer.Func[Q, R](func(_ context.Context, req Q) (R, error) {
				return &layertest.Response{ID: req.ID}, nil
			})), g}
		},
		Fill: func(svc layer.Service[Q, R]) func() {
			g := svc.(closedGate).gate
			g.Close()
			return g.Open
		},
	})
}
