package layer_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestLazyFirstUse(t *testing.T) {
	made := 0
	svc := layer.Lazy(func() layer.Service[string, string] { made++; return greet })
	require.Equal(t, "lazy       made=false\n", layer.Describe(svc).String())
	require.Zero(t, made)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			got, err := svc.Call(t.Context(), "ann")
			assert.NoError(t, err)
			assert.Equal(t, "hello ann", got)
			assert.NoError(t, svc.Ready(t.Context()))
		})
	}
	all.Wait()
	require.Equal(t, 1, made)
	require.Equal(t, "lazy       made=true\nlayer.Func\n", layer.Describe(svc).String())
}

func TestLazyReady(t *testing.T) {
	made := 0
	svc := layer.Lazy(func() layer.Service[string, string] {
		made++
		return layer.Limit[string, string](0)(greet)
	})
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	require.Equal(t, 1, made)
}

func TestLazyPanic(t *testing.T) {
	made := 0
	svc := layer.Lazy(func() layer.Service[string, string] {
		switch made++; made {
		case 1:
			panic("boom")
		case 2:
			return nil
		}
		return greet
	})
	require.PanicsWithValue(t, "boom", func() { _, _ = svc.Call(t.Context(), "ann") })
	require.PanicsWithValue(t, "layer: Lazy: the function returned no service", func() { _, _ = svc.Call(t.Context(), "ann") })
	got, err := svc.Call(t.Context(), "ann")
	require.NoError(t, err)
	require.Equal(t, "hello ann", got)
}

func TestLazyCanceledCaller(t *testing.T) {
	canceled := errors.New("canceled")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(canceled)
	svc := layer.Lazy(func() layer.Service[string, string] { t.Error("made"); return greet })
	_, err := svc.Call(ctx, "ann")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, canceled)
}
