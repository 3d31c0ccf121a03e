package layer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func timerOf(a *rateAlarm) *time.Timer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.timer
}

func TestRateAlarmHasOneTimerForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a rateAlarm
		until := time.Now().Add(time.Second)
		var wg sync.WaitGroup
		join := func() {
			wg.Go(func() {
				assert.NoError(t, a.wait(t.Context(), func() time.Duration { return time.Until(until) }))
			})
			synctest.Wait()
		}
		join()
		first := timerOf(&a)
		require.NotNil(t, first)
		for range 10 {
			time.Sleep(time.Millisecond)
			join()
			require.Same(t, first, timerOf(&a))
		}
		wg.Wait()
		require.Nil(t, timerOf(&a))
		require.Equal(t, until, time.Now())
	})
}

func TestRateAlarmKeepsNoTimerForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a rateAlarm
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, d := range []time.Duration{rateNever, time.Hour} {
			wg.Go(func() { assert.ErrorIs(t, a.wait(ctx, func() time.Duration { return d }), context.Canceled) })
			synctest.Wait()
			require.Equal(t, d == rateNever, timerOf(&a) == nil, "what never comes is not waited for by the clock")
		}
		cancel()
		wg.Wait()
		require.Nil(t, timerOf(&a))
		require.ErrorIs(t, a.wait(ctx, func() time.Duration { return time.Hour }), context.Canceled)
		require.Nil(t, timerOf(&a), "nor for a poll")
	})
}
