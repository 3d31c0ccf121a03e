package layer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

func TestConformMirror(t *testing.T) {
	type (
		Q = *layertest.Request
		R = *layertest.Response
	)
	for name, to := range map[string]layer.Func[Q, R]{
		"answers": func(_ context.Context, req Q) (R, error) { return &layertest.Response{ID: req.ID}, nil },
		"fails":   func(context.Context, Q) (R, error) { return nil, errors.New("down") },
		"panics":  func(context.Context, Q) (R, error) { panic("down") },
		"hangs": func(ctx context.Context, _ Q) (R, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		"not ready": func(context.Context, Q) (R, error) { return nil, layer.ErrNotReady },
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
					return layer.Mirror(ctx, to, forking{}, layer.MirrorPolicy[Q]{})(next)
				},
			})
		})
	}
	for name, policy := range map[string]layer.MirrorPolicy[Q]{
		"for others": {Match: func(Q) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			layertest.Run(t, layertest.Layer{
				New: func(ctx context.Context, next layer.Service[Q, R]) layer.Service[Q, R] {
					return layer.Mirror(ctx, next, forking{}, policy)(next)
				},
				Transparent: true,
			})
		})
	}
}
