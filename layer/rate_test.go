package layer_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func rateOf(perSecond float64, burst int) layer.Service[int, int] {
	return layer.RateLimit[int, int](perSecond, burst)(layer.Func[int, int](echo))
}

func TestRateLimitConcurrentCallers(t *testing.T) { // tokio-rs/axum#2634: a rate for each clone
	synctest.Test(t, func(t *testing.T) {
		svc := rateOf(100, 10)
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 50 { // for two seconds, a hundred times a second
			wg.Go(func() {
				for range 200 {
					if _, err := svc.Call(t.Context(), 1); err == nil {
						admitted.Add(1)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 10+199, admitted.Load(), "the burst, and one for each of the 199 times that 10 ms passed")
	})
}

func TestRateLimitRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := rateOf(4, 1)
		for _, used := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 249 * time.Millisecond} {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(used)
			_, err = svc.Call(t.Context(), 1)
			require.ErrorIs(t, err, layer.ErrNotReady)
			after, ok := layer.RetryAfter(err)
			require.True(t, ok)
			exact := 250*time.Millisecond - used
			require.GreaterOrEqual(t, after, exact)
			require.LessOrEqual(t, after, exact+250*time.Millisecond/16)
			for range 100 {
				_, err = svc.Call(t.Context(), 1)
				require.Error(t, err, "and a rejection takes no token")
			}
			time.Sleep(exact)
		}
	})
}

func TestRateLimitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := rateOf(10, 1)
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		began := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				assert.NoError(t, svc.Ready(t.Context()))
				assert.Equal(t, 100*time.Millisecond, time.Since(began))
			})
		}
		wg.Wait()
		require.NoError(t, layer.Poll(svc))
		_, err = svc.Call(t.Context(), 1)
		require.NoError(t, err)
	})
}

func TestRateLimitReadyTokenTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// When the first token arrives, the inner service is not ready. Another caller
		// takes that token.
		inner := &gate{}
		svc := layer.RateLimit[int, int](10, 1)(inner)
		inner.allow(1)
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		began := time.Now()
		var waited time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			assert.NoError(t, svc.Ready(t.Context()))
			waited = time.Since(began)
		}()
		time.Sleep(150 * time.Millisecond)
		_, err = svc.Call(t.Context(), 1)
		require.ErrorIs(t, err, layer.ErrNotReady, "rejected by inner, and the token is gone")
		inner.allow(1)
		<-done
		require.Equal(t, 250*time.Millisecond, waited)
	})
}

func TestRateLimitReadyContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := rateOf(0.001, 1)
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		gone := errors.New("gone")
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(i)*time.Second, gone)
			wg.Go(func() {
				defer cancel()
				assert.ErrorIs(t, svc.Ready(ctx), gone)
				assert.Equal(t, time.Duration(i)*time.Second, time.Since(began))
			})
		}
		wg.Wait()
		// The timer was stopped with the last waiter. A later waiter starts it again.
		time.Sleep(90 * time.Second)
		require.NoError(t, svc.Ready(t.Context()))
		require.Equal(t, 1000*time.Second, time.Since(began))
	})
}

func TestRateLimitZeroAndInfinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, svc := range []layer.Service[int, int]{
			rateOf(0, 1), rateOf(1, 0), rateOf(math.Inf(1), 0),
		} {
			_, err := svc.Call(t.Context(), 1)
			require.EqualError(t, err, "rate: not ready: the rate is 0")
			_, ok := layer.RetryAfter(err)
			require.False(t, ok)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			require.ErrorIs(t, svc.Ready(ctx), context.DeadlineExceeded)
			cancel()
		}
		all := rateOf(math.Inf(1), 1)
		for range 1000 {
			_, err := all.Call(t.Context(), 1)
			require.NoError(t, err)
			require.NoError(t, layer.Poll(all))
		}
	})
}

func TestRateLimitRejectionAllocations(t *testing.T) {
	rejected := byLabel{}
	svc := layer.RateLimit[int](0.001, 1, layer.WithTarget[int]("web"), layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(
		layer.Func[int, int](echo))
	_, err := svc.Call(t.Context(), 1)
	require.NoError(t, err)
	_, err = svc.Call(t.Context(), 1)
	require.EqualError(t, err, "rate web: not ready: out of tokens at 0.001 a second")
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = svc.Call(t.Context(), 1) }))
	require.EqualValues(t, 102, *rejected["rate"])
	require.EqualValues(t, 102, layer.Describe(svc).State.Get("rejected"))
}
