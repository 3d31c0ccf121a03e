package layer_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

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
