package layer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A Completion that panics leaves no slot taken, no request open and no entry in
// use.
func TestCompletionPanic(t *testing.T) {
	until := layer.WithCompletion(func(_ context.Context, rsp int, o layer.Observer) int {
		if rsp < 0 {
			panic("completion")
		}
		o.End(nil)
		return rsp
	})
	inner := layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cache := layer.NewCache(ctx, func(context.Context, string) layer.Service[int, int] { return inner }, layer.CachePolicy{}, until)
	for name, svc := range map[string]layer.Service[int, int]{
		"limit":    layer.Limit[int](2, until)(inner),
		"adaptive": layer.AdaptiveLimit[int](layer.AdaptivePolicy{Max: 2}, until)(inner),
		"shed":     layer.Shed[int](layer.ShedPolicy{}, until)(inner),
		"drain":    layer.Drain[int](new(layer.Drainer), until)(inner),
		"cache":    cache.Service("a"),
	} {
		for range 3 {
			require.PanicsWithValue(t, "completion", func() { _, _ = svc.Call(ctx, -1) }, name)
		}
		_, err := svc.Call(ctx, 1)
		require.NoError(t, err, name)
		if n, ok := layer.Describe(svc).State.Get("in_flight").(int64); ok {
			require.Zero(t, n, name)
		}
	}
	require.EqualValues(t, 0, cache.Describe().Children[0].State.Get("open"))
}
