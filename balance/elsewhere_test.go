package balance_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Whatever the latencies, a request that is sent again goes where it has not
// been, until it has been everywhere (envoyproxy/envoy#2259, grpc/proposal#12).
func TestSentAgainGoesElsewhere(t *testing.T) {
	const n = 10
	for round := range 50 {
		b, _ := of(t, n)
		tries := new(layer.Tries)
		ctx := layer.WithTries(t.Context(), tries)
		for i := range n {
			_, err := b.Call(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, i+1, tries.Len(), "round %d: somewhere it has been", round)
		}
		_, err := b.Call(ctx, 1)
		require.NoError(t, err, "it has been everywhere, and may go anywhere")
		require.Equal(t, n, tries.Len())
	}
}

func TestTriesOfOthersDoNotMatter(t *testing.T) {
	b, _ := of(t, 2)
	for range 20 {
		tries := new(layer.Tries)
		_, err := b.Call(layer.WithTries(t.Context(), tries), 1)
		require.NoError(t, err)
		assert.Equal(t, 1, tries.Len())
	}
}

// In a set that is much larger than what is looked at, the few places where the
// request has been are passed over.
func TestSentAgainAmongMany(t *testing.T) {
	b, _ := of(t, 1000)
	tries := new(layer.Tries)
	ctx := layer.WithTries(t.Context(), tries)
	for i := range 10 {
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, i+1, tries.Len())
	}
}

// The context, the Tries and a second pick, as a retry would have it.
func BenchmarkPickElsewhere(b *testing.B) {
	svc, _ := of(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		tries := new(layer.Tries)
		ctx := layer.WithTries(context.Background(), tries)
		_, _ = svc.Call(ctx, 1)
		_, _ = svc.Call(ctx, 1)
	}
}
