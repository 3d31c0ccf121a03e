package balance_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve/static"
)

func TestNilOptionOfResolve(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := balance.Resolve(ctx, static.New(nil), "web", func(context.Context, discover.Target) layer.Service[int, int] {
		return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	}, nil)
	_, err := b.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

// Whose time was over has not gone.
func TestCallerWhoseTimeIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		ctx, leave := context.WithCancelCause(t.Context())
		leave(layer.ErrTryTimeout)
		require.EqualError(t, p.send(ctx), "balance web: not ready: its time was over: try timeout")
	})
}
