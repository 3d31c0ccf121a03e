package layer_test

import (
	"context"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformReconnect(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	layertest.Run(t, layertest.Layer{
		NoAllocs:      true,
		OutlivesInner: true, // it connects again
		New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
			svc := layer.Reconnect(ctx, func(context.Context) (layer.Service[Q, R], error) { return next, nil }, layer.Backoff{})
			reconnectNow(svc)
			return svc
		},
	})
}

// reconnectNow connects svc. It does not send a request to the inner service.
func reconnectNow[Q, R any](svc layer.Service[Q, R]) { _ = svc.Ready(context.Background()) }
