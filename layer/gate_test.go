package layer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestGateStates(t *testing.T) {
	g, rejected := new(layer.Gate), byLabel{}
	svc := layer.Gated[int](g, layer.WithTarget[int]("web"), layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(&breakerInner{})
	require.NoError(t, breakerCalls(t, svc, 10), "a new gate is open")
	require.Equal(t, "open", breakerState(svc, "state"))

	g.Close()
	require.EqualError(t, breakerCalls(t, svc, 1), "gate web: not ready: closed")
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	require.Equal(t, "closed", breakerState(svc, "state"))

	g.Open()
	require.NoError(t, breakerCalls(t, svc, 10))
	require.EqualValues(t, 1, breakerState(svc, "rejected"))
	require.EqualValues(t, 1, *rejected["gate"])
}

func TestGateReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(layer.Gate)
		svc := layer.Gated[int, int](g)(&breakerInner{})
		g.Close()
		var ready atomic.Int64
		for range 10 {
			go func() {
				if assert.NoError(t, svc.Ready(t.Context())) {
					ready.Add(1)
				}
			}()
		}
		time.Sleep(time.Hour)
		require.Zero(t, ready.Load())
		g.Open()
		synctest.Wait()
		require.EqualValues(t, 10, ready.Load())

		g.Close()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBreaker)
		defer cancel()
		require.ErrorIs(t, svc.Ready(ctx), errBreaker)
	})
}

func TestGateReadyLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, inner := new(layer.Gate), &breakerBusy{ready: make(chan struct{})}
		svc := layer.Gated[int, int](g)(inner)
		done := make(chan error, 1)
		go func() { done <- svc.Ready(t.Context()) }()
		synctest.Wait()
		g.Close()
		close(inner.ready)
		synctest.Wait()
		require.Empty(t, done)
		g.Open()
		require.NoError(t, <-done)
	})
}
