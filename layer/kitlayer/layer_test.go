package kitlayer_test

import (
	"context"
	"io"
	"testing"

	"github.com/go-kit/kit/endpoint"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

func TestLayerDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	heard := func(endpoint.Endpoint) endpoint.Endpoint {
		return func(context.Context, any) (any, error) { return nil, io.EOF }
	}
	_, err := kitlayer.Layer[int, int](heard)(layer.Func[int, int](func(context.Context, int) (int, error) { return 0, nil })).Call(ctx, 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "middleware: not ready: canceled by the caller: context canceled")
}
