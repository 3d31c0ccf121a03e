package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestLimitByIsExactForEveryKey(t *testing.T) { // tokio-rs/axum#2582: limits that are per clone
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		svc := layer.LimitBy[int, int, int](func(req int) int { return req % 10 }, 3)(
			layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				<-hold
				return req, nil
			}))
		var admitted [10]atomic.Int64
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				_, err := svc.Call(t.Context(), i)
				if err == nil {
					admitted[i%10].Add(1)
				} else {
					assert.ErrorIs(t, err, layer.ErrNotReady)
				}
			})
		}
		synctest.Wait()
		state := layer.Describe(svc).State
		assert.Equal(t, 10, state.Get("keys"))
		assert.Equal(t, 30, state.Get("in_flight"))
		assert.EqualValues(t, 470, state.Get("rejected"))
		assert.NoError(t, layer.Poll(svc), "the key of the next request is not known")
		close(hold)
		wg.Wait()
		for i := range admitted {
			assert.EqualValues(t, 3, admitted[i].Load())
		}
		assert.Equal(t, 0, layer.Describe(svc).State.Get("keys"), "a key goes with its last request")
	})
}

func TestLimitByGivesItsSlotBack(t *testing.T) { // tower-rs/tower#408, #434: permits that leak
	boom := errors.New("boom")
	svc := layer.LimitBy[string, string, int](func(req string) string { return req }, 1)(
		layer.Func[string, int](func(_ context.Context, how string) (int, error) {
			switch how {
			case "error":
				return 0, boom
			case "panic":
				panic(how)
			case "goexit":
				runtime.Goexit()
			}
			return 0, nil
		}))
	for range 2 { // the second finds the slot free
		_, err := svc.Call(t.Context(), "error")
		require.Equal(t, boom, err)
		require.PanicsWithValue(t, "panic", func() { _, _ = svc.Call(t.Context(), "panic") })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = svc.Call(t.Context(), "goexit")
		}()
		<-done
	}
	require.Equal(t, 0, layer.Describe(svc).State.Get("in_flight"))
}

func TestLimitByKeepsWhatItWasGivenBackForAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.LimitBy[int, int, *response](func(req int) int { return req }, 1)(
			layer.Func[int, *response](func(context.Context, int) (*response, error) { return bodyOf("some words"), nil }))
		for key := range 1000 {
			rsp, err := svc.Call(t.Context(), key)
			require.NoError(t, err)
			_, err = svc.Call(t.Context(), key)
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.NoError(t, rsp.Body.Close())
			require.NoError(t, rsp.Body.Close(), "the slot may be another key's by now")
		}
		require.Equal(t, 0, layer.Describe(svc).State.Get("in_flight"))
	})
}

func TestLimitByRefusesAKeyThatCannotBeFoundAgain(t *testing.T) {
	rejected := byLabel{}
	svc := layer.LimitBy[float64, float64, int](func(req float64) float64 { return req }, 1,
		layer.WithMetrics[int](layer.Instruments{LayerRejections: rejected}))(
		layer.Func[float64, int](func(context.Context, float64) (int, error) { return 0, nil }))
	_, err := svc.Call(t.Context(), math.NaN())
	require.EqualError(t, err, "limit_by: not ready: the key is not equal to itself")
	require.EqualValues(t, 1, *rejected["limit_by"])
	_, err = svc.Call(t.Context(), 1)
	require.NoError(t, err)
}

func TestLimitByAdmitsNothing(t *testing.T) {
	for _, n := range []int{0} {
		svc := layer.LimitBy[int, int, int](func(req int) int { return req }, n)(layer.Func[int, int](echo))
		_, err := svc.Call(t.Context(), 1)
		require.EqualError(t, err, "limit_by: not ready: 0 of 0 in flight for the key")
		require.Equal(t, 0, layer.Describe(svc).State.Get("keys"))
	}
}

// A key that cannot be hashed panics, as in a map. Requests with other keys are not
// affected.
func TestLimitByPanicsOfTheKey(t *testing.T) {
	svc := layer.LimitBy[any, any, int](func(req any) any { return req }, 1)(
		layer.Func[any, int](func(context.Context, any) (int, error) { return 0, nil }))
	for range 100 {
		require.Panics(t, func() { _, _ = svc.Call(t.Context(), []int{1}) })
	}
	for i := range 1000 { // in every shard
		_, err := svc.Call(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
}
