package layer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestGateStates(t *testing.T) {
	g, rejected := layer.NewGate(), byLabel{}
	svc := layer.Gated[int](g, layer.WithTarget[int]("web"), layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(&breakerInner{})
	require.NoError(t, breakerCalls(t, svc, 10), "a new gate is open")
	require.Equal(t, "open", fmtState(svc))

	g.Close()
	require.EqualError(t, breakerCalls(t, svc, 1), "gate web: not ready: shut")
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)

	g.Limit(2)
	require.NoError(t, layer.Poll(svc))
	require.NoError(t, breakerCalls(t, svc, 2))
	require.EqualError(t, breakerCalls(t, svc, 1), "gate web: not ready: limited, and every place is taken")
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	require.Equal(t, "limited", fmtState(svc))
	require.EqualValues(t, 0, breakerState(svc, "left"))
	require.EqualValues(t, 2, breakerState(svc, "of"))

	g.Limit(1)
	require.NoError(t, breakerCalls(t, svc, 1), "places are counted anew")
	require.Error(t, breakerCalls(t, svc, 1))
	g.Open()
	require.NoError(t, breakerCalls(t, svc, 10))
	g.Limit(-1)
	require.Equal(t, "shut", fmtState(svc))
	require.EqualValues(t, 3, breakerState(svc, "rejected"))
	require.EqualValues(t, 3, *rejected["gate"])
}

func fmtState(svc layer.Service[int, int]) string {
	return breakerState(svc, "state").(interface{ String() string }).String()
}

func TestGatePlacesComeBackWhenTheJudgeSaysSo(t *testing.T) {
	g := layer.NewGate()
	g.Limit(1)
	pass, ok := g.TryAcquire()
	require.True(t, ok)
	_, ok = g.TryAcquire()
	require.False(t, ok)
	pass.Release()
	pass.Release()
	second, ok := g.TryAcquire()
	require.True(t, ok)
	_, ok = g.TryAcquire()
	require.False(t, ok, "a place that is returned twice is still one")

	g.Limit(1)
	second.Release()
	_, ok = g.TryAcquire()
	require.True(t, ok)
	_, ok = g.TryAcquire()
	require.False(t, ok, "a place of an earlier limit does not come back to this one")

	g.Open()
	pass, ok = g.TryAcquire()
	require.True(t, ok)
	g.Close()
	pass.Release()
	_, ok = g.TryAcquire()
	require.False(t, ok)
	layer.Permit{}.Release()
}

func TestGateGivesBackWhatInnerRefused(t *testing.T) {
	g, inner := layer.NewGate(), &breakerInner{}
	svc := layer.Gated[int, int](g)(inner)
	g.Limit(1)
	inner.with(layer.ErrNotReady)
	require.ErrorIs(t, breakerCalls(t, svc, 5), layer.ErrNotReady)
	require.EqualValues(t, 5, inner.calls.Load())
	inner.with(errBreaker)
	require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker)
	require.ErrorIs(t, breakerCalls(t, svc, 1), layer.ErrNotReady)
	require.EqualValues(t, 6, inner.calls.Load())
}

func TestGateReadyWaitsForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := layer.NewGate()
		svc := layer.Gated[int, int](g)(&breakerInner{})
		for _, change := range []func(){g.Open, func() { g.Limit(3) }} {
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
			change()
			synctest.Wait()
			require.EqualValues(t, 10, ready.Load())
		}
		g.Limit(1)
		pass, _ := g.TryAcquire()
		done := make(chan error)
		go func() { done <- svc.Ready(t.Context()) }()
		synctest.Wait()
		pass.Release()
		require.NoError(t, <-done, "a place that comes back wakes those who wait")
		g.Close()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBreaker)
		defer cancel()
		require.ErrorIs(t, svc.Ready(ctx), errBreaker)
	})
}

func TestGateReadyLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, inner := layer.NewGate(), &breakerBusy{ready: make(chan struct{})}
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

// However it is changed in between, a limit is exact.
func TestGateLimitIsExact(t *testing.T) {
	g := layer.NewGate()
	g.Limit(100)
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				if pass, ok := g.TryAcquire(); ok {
					if passed.Add(1)%3 == 0 {
						passed.Add(-1)
						pass.Release()
					}
				}
			}
		})
	}
	all.Wait()
	for {
		if _, ok := g.TryAcquire(); !ok {
			break
		}
		passed.Add(1)
	}
	require.EqualValues(t, 100, passed.Load())
}
