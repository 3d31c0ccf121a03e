package layer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformDrain(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		New: func(_ context.Context, next layer.Service[*layertest.Request, *layertest.Response],
		) layer.Service[*layertest.Request, *layertest.Response] {
			// Each check needs a Drainer of its own, because contexts from outside a bubble
			// do not block durably in it.
			return layer.Drain[*layertest.Request, *layertest.Response](layer.NewDrainer())(next)
		},
		NoAllocs: true,
	})
}

// A stack that drains is a service that can be closed.
func TestConformDrainClosed(t *testing.T) {
	type service = layer.Service[*layertest.Request, *layertest.Response]
	drainers := make(map[service]*layer.Drainer)
	layertest.Run(t, layertest.Service{
		New: func(context.Context) service {
			d := layer.NewDrainer()
			svc := layer.Drain[*layertest.Request, *layertest.Response](d)(
				layer.Func[*layertest.Request, *layertest.Response](
					func(_ context.Context, req *layertest.Request) (*layertest.Response, error) {
						return &layertest.Response{ID: req.ID}, nil
					}))
			drainers[svc] = d
			return svc
		},
		Close: func(svc service) { require.NoError(t, drainers[svc].Drain(context.Background())) },
	})
}
