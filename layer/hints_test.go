package layer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestPickInfoIsOneValue(t *testing.T) {
	require.Zero(t, layer.PickInfoFromContext(t.Context()))
	tries := new(layer.Attempts)
	ctx := layer.WithAffinity(layer.WithAttempts(t.Context(), tries), 7)
	ctx, why := layer.Explain(ctx)
	require.Equal(t, layer.PickInfo{Attempts: tries, Explanation: why, Affinity: 7, HasAffinity: true}, layer.PickInfoFromContext(ctx))
	again, same := layer.Explain(ctx)
	require.Same(t, why, same, "the Explanation of ctx is kept")
	require.Same(t, tries, layer.AttemptsFromContext(again))
}

// Context values pass the layers that send requests again.
func TestPickInfoThroughRetryAndHedge(t *testing.T) {
	var got layer.PickInfo
	leaf := layer.Func[int, int](func(ctx context.Context, _ int) (int, error) {
		got = layer.PickInfoFromContext(ctx)
		return 0, nil
	})
	for name, svc := range map[string]layer.Service[int, int]{
		"retry": layer.NewStack[int, int]().Retry(layer.RetryPolicy[int, int]{}).Service(leaf),
		"hedge": layer.NewStack[int, int]().Hedge(layer.HedgePolicy[int]{}).Service(leaf),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, why := layer.Explain(layer.WithAffinity(t.Context(), 7))
			_, err := svc.Call(ctx, 1)
			require.NoError(t, err)
			require.Same(t, why, got.Explanation)
			require.True(t, got.HasAffinity)
			require.EqualValues(t, 7, got.Affinity)
		})
	}
}

func TestExplanation(t *testing.T) {
	var zero *layer.Explanation
	zero.Add(layer.Node{Name: "dropped"})
	require.Empty(t, zero.Choices())
	require.Empty(t, zero.String())

	_, why := layer.Explain(t.Context())
	text, err := json.Marshal(why)
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(text))
	why.Add(layer.Node{Name: "router", State: layer.State{{Key: "route", Value: "vote"}}})
	why.Choices()[0].Name = "mine"
	text, err = json.Marshal(why)
	require.NoError(t, err)
	require.JSONEq(t, `[{"name":"router","state":{"route":"vote"}}]`, string(text))
}

func ExampleExplain() {
	choose := layer.Func[string, string](func(ctx context.Context, req string) (string, error) {
		layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "coin", State: layer.State{{Key: "side", Value: "heads"}}})
		return req, nil
	})
	ctx, why := layer.Explain(context.Background())
	_, _ = choose.Call(ctx, "which?")
	fmt.Print(why)
	// Output: coin       side=heads
}
