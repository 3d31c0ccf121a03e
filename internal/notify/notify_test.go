package notify_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/notify"
)

func never() bool  { return false }
func always() bool { return true }

func TestWaitChecksConditionFirst(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)

	var b notify.Broadcast
	require.NoError(t, b.Wait(ctx, always))
	require.ErrorIs(t, b.Wait(ctx, never), gone)
}

func TestWaitReturnsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("late")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()

		var b notify.Broadcast
		start := time.Now()
		require.ErrorIs(t, b.Wait(ctx, never), late)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// A condition that becomes true when the context ends counts.
func TestWaitChecksConditionLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var b notify.Broadcast
		var ok atomic.Bool
		result := make(chan error)
		go func() { result <- b.Wait(ctx, ok.Load) }()
		synctest.Wait()
		ok.Store(true) // and no Wake
		cancel()
		require.NoError(t, <-result)
	})
}

func TestWakeWithFalseCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b notify.Broadcast
		var ok atomic.Bool
		var asked, returned atomic.Int64
		for range 10 {
			go func() {
				assert.NoError(t, b.Wait(t.Context(), func() bool { asked.Add(1); return ok.Load() }))
				returned.Add(1)
			}()
		}
		synctest.Wait()
		before := asked.Load()
		b.Wake()
		synctest.Wait()
		require.Zero(t, returned.Load())
		require.Equal(t, before+10, asked.Load(), "each waiter checks once")

		ok.Store(true)
		synctest.Wait()
		require.Zero(t, returned.Load(), "waiters do not poll")
		b.Wake()
		synctest.Wait()
		require.EqualValues(t, 10, returned.Load())
	})
}

func TestWakeWithoutWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b notify.Broadcast
		b.Wake()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.Wait(ctx, never), context.DeadlineExceeded, "a Wake is not stored")
		b.Wake() // closes the channel of the canceled waiter

		var ok atomic.Bool
		done := make(chan error)
		go func() { done <- b.Wait(t.Context(), ok.Load) }()
		synctest.Wait()
		ok.Store(true)
		b.Wake()
		require.NoError(t, <-done)
	})
}

// Takers wait for permits that givers hand out without a lock. After a lost wake-up
// a taker would wait forever for a permit that is free.
func TestWakeConcurrent(t *testing.T) {
	const takers, rounds = 200, 50
	var b notify.Broadcast
	var permits, taken atomic.Int64
	take := func() bool {
		for {
			n := permits.Load()
			if n == 0 {
				return false
			}
			if permits.CompareAndSwap(n, n-1) {
				return true
			}
		}
	}
	var all sync.WaitGroup
	for range takers {
		all.Go(func() {
			for range rounds {
				// The condition takes a permit, so it may be false for the next taker.
				if assert.NoError(t, b.Wait(t.Context(), take)) {
					taken.Add(1)
				}
			}
		})
	}
	for range 8 {
		all.Go(func() {
			for range takers * rounds / 8 {
				permits.Add(1)
				b.Wake()
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	require.EqualValues(t, takers*rounds, taken.Load())
	require.Zero(t, permits.Load())
}

// A waiter that gives up must not take the wake-up of another waiter.
func TestWaitCanceled(t *testing.T) {
	const rounds = 2000
	var b notify.Broadcast
	var turn atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithCancel(t.Context())
				go func() { runtime.Gosched(); cancel() }()
				assert.ErrorIs(t, b.Wait(ctx, never), context.Canceled)
			}
		})
	}
	// Two goroutines alternate: each waits for the change of the other.
	for me := range int64(2) {
		all.Go(func() {
			for range rounds {
				assert.NoError(t, b.Wait(t.Context(), func() bool { return turn.Load()%2 == me }))
				turn.Add(1)
				b.Wake()
			}
			if me == 1 {
				close(stop)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 2*rounds, turn.Load())
}

func TestWakeAllocatesNothing(t *testing.T) {
	var b notify.Broadcast
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Wake()
		_ = b.Wait(t.Context(), always)
	}))
}

func BenchmarkWake(b *testing.B) {
	var w notify.Broadcast
	b.ReportAllocs()
	for b.Loop() {
		w.Wake()
	}
}
