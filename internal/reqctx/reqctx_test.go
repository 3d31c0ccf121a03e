package reqctx_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/reqctx"
)

var (
	errLimit = errors.New("limit passed")
	errGone  = errors.New("client left")
)

type watcher struct{ causes []error }

func (w *watcher) ContextDone(cause error) { w.causes = append(w.causes, cause) }

type key struct{}

func TestContextEndsByDeadline(t *testing.T) {
	for name, watched := range map[string]bool{"polled": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent := context.WithValue(t.Context(), key{}, "value")
				c := reqctx.New(parent, time.Second, errLimit)
				w := new(watcher)
				if watched {
					reqctx.Watch(c, w)
				}
				deadline, ok := c.Deadline()
				require.True(t, ok)
				require.Equal(t, time.Second, time.Until(deadline))
				time.Sleep(time.Second - 1)
				require.NoError(t, c.Err())
				require.NoError(t, c.Cause())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, context.DeadlineExceeded, c.Err())
				require.Equal(t, errLimit, context.Cause(c))
				require.Equal(t, errLimit, c.Cause())
				require.True(t, c.Expired())
				require.True(t, reqctx.Ended(c))
				require.Equal(t, "value", c.Value(key{}))
				<-c.Done()
				c.Cancel(errGone)
				require.Equal(t, errLimit, context.Cause(c), "the first cause stays")
				if watched {
					require.Equal(t, []error{errLimit}, w.causes)
				}
			})
		})
	}
}

func TestContextHiddenLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c reqctx.Context
		c.InitHidden(t.Context(), time.Second, errLimit)
		_, ok := c.Deadline()
		require.False(t, ok)
		require.NotNil(t, c.Done())
		require.True(t, c.Lift())
		time.Sleep(time.Hour)
		require.NoError(t, c.Err())
		c.Cancel(nil)

		var d reqctx.Context
		d.InitHidden(t.Context(), time.Second, errLimit)
		time.Sleep(time.Second)
		require.Equal(t, context.Canceled, d.Err())
		require.False(t, d.Lift())
		require.Equal(t, errLimit, context.Cause(&d))
	})
}

// A paused limit does not run, and runs for its whole length after the last Resume. Pause of an inner
// context also stops the limits of its parents.
func TestContextPause(t *testing.T) {
	for _, watched := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var outer, inner reqctx.Context
			outer.InitPausable(t.Context(), time.Second, errLimit)
			inner.InitPausable(context.WithValue(reqctx.New(&outer, 0, nil), key{}, 1), 2*time.Second, errLimit)
			defer inner.Cancel(nil)
			if watched {
				require.NotNil(t, inner.Done())
			}
			c := reqctx.Pausable(reqctx.WithValue(&inner, key{}, 2))
			require.Same(t, &inner, c)
			for range 2 {
				c.Pause()
				c.Pause()
				time.Sleep(time.Minute)
				c.Resume()
				time.Sleep(time.Minute)
				require.NoError(t, inner.Err())
				c.Resume()
				time.Sleep(time.Second - 1)
				require.NoError(t, inner.Err())
			}
			time.Sleep(time.Nanosecond)
			require.True(t, outer.Expired())
			require.Equal(t, errLimit, context.Cause(&inner))
			c.Pause() // without effect
			c.Resume()
			require.Error(t, inner.Err())
			require.Nil(t, reqctx.Pausable(t.Context()))
			reqctx.Pausable(t.Context()).Pause()
		})
	}
}

// A limit that starts while it is paused runs after Resume. A lifted limit does not start again.
func TestContextPauseLift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c, lifted reqctx.Context
		c.InitPausable(t.Context(), time.Second, errLimit)
		c.Pause()
		done := c.Done()
		c.Resume()
		start := time.Now()
		<-done
		require.Equal(t, time.Second, time.Since(start))

		lifted.InitPausable(t.Context(), time.Second, errLimit)
		lifted.Pause()
		require.True(t, lifted.Lift())
		lifted.Resume()
		require.NotNil(t, lifted.Done())
		time.Sleep(time.Hour)
		require.NoError(t, lifted.Err())
		lifted.Cancel(nil)
	})
}

func TestContextParentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		std, cancel := context.WithCancelCause(t.Context())
		c := reqctx.New(std, time.Hour, errLimit)
		d := reqctx.New(reqctx.WithValue(c, key{}, 1), 0, nil)
		e, stop := context.WithCancel(d)
		defer stop()
		w := new(watcher)
		reqctx.Watch(c, w)
		require.NoError(t, e.Err())
		cancel(errGone)
		for _, ctx := range []context.Context{c, d} {
			require.Equal(t, context.Canceled, ctx.Err())
			require.Equal(t, errGone, context.Cause(ctx))
		}
		<-e.Done()
		require.Equal(t, errGone, context.Cause(e))
		synctest.Wait() // w is notified after e
		require.Equal(t, []error{errGone}, w.causes)
		require.Equal(t, 1, e.Value(key{}))
	})
}

func TestContextOfEarlierParentDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := reqctx.New(t.Context(), time.Second, errGone)
		inner := reqctx.New(outer, time.Minute, errLimit)
		time.Sleep(2 * time.Second)
		require.Equal(t, context.DeadlineExceeded, inner.Err())
		require.Equal(t, errGone, context.Cause(inner))
		require.False(t, inner.Expired())

		outer = reqctx.New(t.Context(), time.Minute, errGone)
		inner = reqctx.New(outer, time.Second, errLimit)
		time.Sleep(time.Hour)
		require.Equal(t, errLimit, context.Cause(inner), "both have passed")
	})
}

func TestWatchStop(t *testing.T) {
	c := reqctx.New(t.Context(), 0, nil)
	one, two := new(watcher), new(watcher)
	first, second := reqctx.Watch(c, one), reqctx.Watch(c, two)
	require.True(t, first.Stop())
	require.False(t, first.Stop())
	c.Cancel(nil)
	require.Empty(t, one.causes)
	require.Equal(t, []error{context.Canceled}, two.causes)
	require.False(t, second.Stop())
	late := new(watcher)
	require.False(t, reqctx.Watch(c, late).Stop())
	require.Equal(t, []error{context.Canceled}, late.causes)
	require.False(t, reqctx.Watch(context.Background(), late).Stop())
}

// Contexts of package context below a Context cost no goroutine.
func TestContextDerivedGoroutines(t *testing.T) {
	c := reqctx.New(t.Context(), time.Hour, errLimit)
	wrapped := reqctx.WithValue(c, key{}, 1)
	before := runtime.NumGoroutine()
	var ends []context.Context
	for range 10 {
		ctx, cancel := context.WithTimeout(wrapped, time.Hour)
		defer cancel()
		ends = append(ends, ctx)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
	c.Cancel(errGone)
	for _, ctx := range ends {
		<-ctx.Done()
		require.Equal(t, errGone, context.Cause(ctx))
	}
}

func TestAllocations(t *testing.T) {
	parent := context.WithoutCancel(t.Context())
	w := new(watcher)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		c := reqctx.New(parent, 0, nil)
		d := reqctx.New(c, 0, nil)
		r := reqctx.Watch(d, w)
		r.Stop()
		d.Cancel(nil)
		c.Cancel(nil)
	}), 2.0)
}

func BenchmarkContext(b *testing.B) {
	parent := context.Background()
	w := new(watcher)
	for name, d := range map[string]time.Duration{"plain": 0, "deadline": time.Hour} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := reqctx.New(parent, d, errLimit)
				reqctx.Watch(c, w).Stop()
				c.Cancel(nil)
			}
		})
	}
}

// Err of a nested context finds the end of the outer parent before the notification arrives.
func TestContextErrBeforeNotification(t *testing.T) {
	for range 100 {
		root, cancel := context.WithCancel(t.Context())
		outer := reqctx.New(root, 0, nil)
		inner := reqctx.New(outer, 0, nil)
		inner.Done()
		cancel()
		require.ErrorIs(t, inner.Err(), context.Canceled)
	}
}
