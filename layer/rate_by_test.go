package layer_test

import (
	"context"
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

func rateByValue(perSecond float64, burst, keys int) layer.Service[int, int] {
	return layer.RateLimitBy[int, int, int](func(req int) int { return req }, perSecond, burst, keys)(layer.Func[int, int](echo))
}

func TestRateLimitByConcurrentCallers(t *testing.T) { // tokio-rs/axum#2634: a rate for each clone
	synctest.Test(t, func(t *testing.T) {
		svc := rateByValue(10, 5, 0)
		var admitted [4]atomic.Int64
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for range 20 {
					if _, err := svc.Call(t.Context(), i%4); err == nil {
						admitted[i%4].Add(1)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		for i := range admitted {
			assert.EqualValues(t, 5+19, admitted[i].Load())
		}
	})
}

func TestRateLimitByRemovesFullBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := rateByValue(1, 1, 100_000)
		for batch := range 10 {
			for i := range 1000 {
				_, err := svc.Call(t.Context(), batch*1000+i)
				require.NoError(t, err)
			}
			time.Sleep(time.Second)
		}
		known := layer.Describe(svc).State.Get("keys").(int)
		require.LessOrEqual(t, known, 2000, "about as many as are not full, and no more for those that were")
		require.GreaterOrEqual(t, known, 1000)
	})
}

func TestRateLimitByFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := rateByValue(1, 2, 3)
		call := func(key int) error {
			_, err := svc.Call(t.Context(), key)
			return err
		}
		for _, key := range []int{0, 0, 1, 1, 2, 2} {
			require.NoError(t, call(key))
		}
		require.Error(t, call(0))
		require.NoError(t, call(99), "in place of 1")
		require.Error(t, call(0), "those that were used keep their places")
		require.Error(t, call(2))
		require.NoError(t, call(1), "it starts again, in place of 99")
		require.Equal(t, 3, layer.Describe(svc).State.Get("keys"))
	})
}

// New clients are served while the buckets of others stay empty for a long time.
func TestRateLimitByServesNewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 1 << 16
		svc := rateByValue(0.01, 1, keys)
		for i := range keys + 1000 {
			_, err := svc.Call(t.Context(), i)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, layer.Describe(svc).State.Get("keys"), keys)
	})
}

func TestRateLimitByZeroAndInfinite(t *testing.T) {
	none, all := rateByValue(0, 1, 8), rateByValue(math.Inf(1), 1, 8)
	for key := range 100 {
		_, err := none.Call(t.Context(), key)
		require.EqualError(t, err, "rate_by: not ready: the rate is 0")
		_, err = all.Call(t.Context(), key)
		require.NoError(t, err)
	}
}

func TestRateLimitByAllocations(t *testing.T) {
	svc := rateByValue(1, 1, 256)
	next := 0
	call := func() {
		_, _ = svc.Call(t.Context(), next%256)
		next++
	}
	for range 1000 {
		call()
	}
	require.Zero(t, testing.AllocsPerRun(1000, call))
}

func TestRateLimitByMaxKeys(t *testing.T) {
	svc := layer.RateLimitBy[int, int, int](func(req int) int { return req }, 1, 1, math.MaxInt)(
		layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil }))
	_, err := svc.Call(t.Context(), 1)
	require.NoError(t, err)
}
