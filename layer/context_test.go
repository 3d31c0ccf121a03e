package layer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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

func TestPriority(t *testing.T) {
	require.Equal(t, layer.PriorityNormal, layer.PriorityFromContext(t.Context()), "unmarked")
	require.Zero(t, layer.PriorityNormal)
	inOrder := []layer.Priority{layer.PriorityBulk, layer.PriorityLow, layer.PriorityNormal, layer.PriorityCritical}
	require.IsIncreasing(t, inOrder)
	for i, name := range []string{"bulk", "low", "normal", "critical"} {
		require.Equal(t, name, inOrder[i].String())
		ctx := layer.WithPriority(t.Context(), inOrder[i])
		require.Equal(t, inOrder[i], layer.PriorityFromContext(ctx))
		require.Equal(t, layer.PriorityLow, layer.PriorityFromContext(layer.WithPriority(ctx, layer.PriorityLow)), "the last one counts")
	}
	require.Equal(t, "bulk", layer.Priority(-128).String())
	require.Equal(t, "critical", layer.Priority(127).String())
}

func TestAttempts(t *testing.T) {
	tries := new(layer.Attempts)
	ctx := layer.WithAttempts(t.Context(), tries)
	require.Same(t, tries, layer.AttemptsFromContext(ctx))
	endpoints := make([]*int, 10)
	for i := range endpoints {
		endpoints[i] = new(int)
		require.False(t, tries.Has(endpoints[i]))
		tries.Add(endpoints[i])
		tries.Add(endpoints[i])
		require.Equal(t, i+1, tries.Len())
	}
	for _, e := range endpoints {
		require.True(t, tries.Has(e))
	}
}

func TestAttemptsNil(t *testing.T) {
	tries := layer.AttemptsFromContext(t.Context())
	require.Nil(t, tries)
	tries.Add(1)
	assert.False(t, tries.Has(1))
	assert.Zero(t, tries.Len())
}

func TestAttemptsConcurrent(t *testing.T) {
	tries := new(layer.Attempts)
	var hedges sync.WaitGroup
	for i := range 8 {
		hedges.Go(func() {
			tries.Add(i % 4)
			assert.True(t, tries.Has(i%4))
		})
	}
	hedges.Wait()
	assert.Equal(t, 4, tries.Len())
}

func TestAttemptsAllocations(t *testing.T) {
	endpoints := [2]*int{new(int), new(int)}
	require.EqualValues(t, 1, testing.AllocsPerRun(100, func() {
		tries := new(layer.Attempts) // the one
		for _, e := range endpoints {
			tries.Add(e)
		}
	}))
}
