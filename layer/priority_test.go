package layer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

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
