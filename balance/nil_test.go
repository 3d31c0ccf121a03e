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

func TestNilOption(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := balance.Resolve(ctx, static.New(nil), "web", func(context.Context, discover.Target) layer.Service[int, int] {
		return layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	}, nil)
	_, err := b.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady)
}

func TestNilCompletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t, balance.WithCompletion[*response](nil)), servers(1)
		p.add(ss...)
		rsp, err := p.Call(t.Context(), "")
		require.NoError(t, err)
		require.EqualValues(t, 1, p.of(ss[0]).Get("in_flight"))
		require.NoError(t, rsp.Body.Close())
		require.EqualValues(t, 0, p.of(ss[0]).Get("in_flight"))
	})
}

// Programming errors panic in the constructor.
func TestConstructorsPanic(t *testing.T) {
	type (
		svc = layer.Service[int, int]
		b   = balance.Balancer[int, int]
	)
	mk := func(context.Context, discover.Target) svc { return nil }
	none := func(func(discover.Change[int, int]) bool) {}
	r := static.New(nil)
	for want, construct := range map[string]func() *b{
		"balance: nil changes":     func() *b { return balance.New[int, int](t.Context(), "web", nil) },
		"balance: nil resolver":    func() *b { return balance.Resolve(t.Context(), nil, "web", mk) },
		"balance: nil MakeService": func() *b { return balance.Resolve[int, int](t.Context(), r, "web", nil) },
		"balance: policy: Decay is -1ns, want 0 for the default, or at least 1ms": func() *b {
			return balance.New(t.Context(), "web", none, balance.WithPolicy[int](balance.Policy{Decay: -1}))
		},
		"balance: outlier detection: MinReady is 2, want from 0, for the default, to 1": func() *b {
			return balance.Resolve(t.Context(), r, "web", mk, balance.WithPolicy[int](balance.Policy{OutlierDetection: balance.OutlierDetection{MinReady: 2}}))
		},
	} {
		require.PanicsWithValue(t, want, func() { construct() })
	}
	require.PanicsWithValue(t, "discover: nil resolver", func() { discover.Endpoints(t.Context(), nil, "web", mk) })
	require.PanicsWithValue(t, "discover: nil MakeService", func() { discover.Endpoints[int, int](t.Context(), r, "web", nil) })
}

func TestCallDeadlineExceeded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, ss := newPool(t), servers(1)
		p.add(ss...)
		ctx, leave := context.WithCancelCause(t.Context())
		leave(layer.ErrAttemptTimeout)
		require.EqualError(t, p.send(ctx), "balance web: not ready: deadline exceeded: attempt timeout")
	})
}
