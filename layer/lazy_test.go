package layer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errLazy = errors.New("no file")

func TestLazyIsMadeOnFirstUseAndOnce(t *testing.T) {
	made := 0
	svc := layer.Lazy(func() (layer.Service[string, string], error) { made++; return greet, nil })
	require.Equal(t, "lazy       made=false\n", layer.Describe(svc).String())
	require.Zero(t, made)
	for range 3 {
		got, err := svc.Call(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, "hello ann", got)
		require.NoError(t, svc.Ready(t.Context()))
	}
	require.Equal(t, 1, made)
	require.Equal(t, "lazy       made=true\nlayer.Func\n", layer.Describe(svc).String())
}

func TestLazyIsMadeByReady(t *testing.T) {
	made := 0
	svc := layer.Lazy(func() (layer.Service[string, string], error) {
		made++
		return layer.Limit[string, string](0)(greet), nil
	})
	require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
	require.Equal(t, 1, made)
}

// lazySlow is made when it is told how.
type lazySlow struct {
	attempts atomic.Int64
	outcome  chan func() (layer.Service[string, string], error)
}

func (s *lazySlow) make() (layer.Service[string, string], error) {
	s.attempts.Add(1)
	return (<-s.outcome)()
}

// inLazy has n callers wait for one attempt.
func inLazy(t *testing.T, n int, f func(t *testing.T, s *lazySlow, svc layer.Service[string, string], results chan error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &lazySlow{outcome: make(chan func() (layer.Service[string, string], error))}
		svc := layer.Lazy(s.make, layer.WithTarget[string]("web"))
		results := make(chan error, 2*n)
		for range n {
			go func() {
				defer func() {
					if p := recover(); p != nil {
						results <- p.(error)
					}
				}()
				_, err := svc.Call(t.Context(), "ann")
				results <- err
			}()
		}
		synctest.Wait()
		f(t, s, svc, results)
	})
}

func TestLazyIsMadeOnceForAllWhoCome(t *testing.T) {
	inLazy(t, 10, func(t *testing.T, s *lazySlow, svc layer.Service[string, string], results chan error) {
		s.outcome <- func() (layer.Service[string, string], error) { return greet, nil }
		for range 10 {
			require.NoError(t, <-results)
		}
		require.EqualValues(t, 1, s.attempts.Load())
	})
}

// An attempt that failed is everybody's, and leaves nothing behind: tower's
// FutureService goes on failing (tower/src/util/future_service.rs).
func TestLazyIsNotPoisonedByAnError(t *testing.T) {
	inLazy(t, 10, func(t *testing.T, s *lazySlow, svc layer.Service[string, string], results chan error) {
		s.outcome <- func() (layer.Service[string, string], error) { return nil, errLazy }
		for range 10 {
			err := <-results
			require.ErrorIs(t, err, errLazy)
			require.ErrorIs(t, err, layer.ErrNotReady)
			require.EqualError(t, err, "lazy web: not ready: it could not be made: no file")
		}
		require.EqualValues(t, 1, s.attempts.Load())
		go func() { s.outcome <- func() (layer.Service[string, string], error) { return greet, nil } }()
		got, err := svc.Call(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, "hello ann", got)
	})
}

func TestLazyIsNotPoisonedByAPanic(t *testing.T) {
	inLazy(t, 10, func(t *testing.T, s *lazySlow, svc layer.Service[string, string], results chan error) {
		boom := errors.New("boom")
		s.outcome <- func() (layer.Service[string, string], error) { panic(boom) }
		require.Equal(t, boom, <-results, "goes to one")
		s.outcome <- func() (layer.Service[string, string], error) { return greet, nil }
		for range 9 {
			require.NoError(t, <-results, "the others try again")
		}
		require.EqualValues(t, 2, s.attempts.Load())
	})
}

func TestLazyWaitersLeaveWithTheirContext(t *testing.T) {
	inLazy(t, 1, func(t *testing.T, s *lazySlow, svc layer.Service[string, string], results chan error) {
		left := errors.New("left")
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			_, err := svc.Call(ctx, "ann")
			assert.ErrorIs(t, err, layer.ErrNotReady)
			assert.ErrorIs(t, err, left)
		})
		all.Go(func() { assert.ErrorIs(t, svc.Ready(ctx), left) })
		synctest.Wait()
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		cancel(left)
		all.Wait()
		s.outcome <- func() (layer.Service[string, string], error) { return greet, nil }
		require.NoError(t, <-results)
	})
}

func TestLazyMakesNothingForACallerWhoHasGone(t *testing.T) {
	left := errors.New("left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(left)
	svc := layer.Lazy(func() (layer.Service[string, string], error) { t.Error("made"); return greet, nil })
	_, err := svc.Call(ctx, "ann")
	require.ErrorIs(t, err, layer.ErrNotReady)
	require.ErrorIs(t, err, left)
}

func TestLazyNilIsAnError(t *testing.T) {
	svc := layer.Lazy(func() (layer.Service[string, string], error) { return nil, nil })
	_, err := svc.Call(t.Context(), "ann")
	require.EqualError(t, err, "lazy: not ready: it could not be made: mk returned no service")
}

// Ready tries again, further and further apart.
func TestLazyReadyTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		svc := layer.Lazy(func() (layer.Service[string, string], error) {
			if attempts++; attempts < 5 {
				return nil, errLazy
			}
			return greet, nil
		})
		begun := time.Now()
		require.NoError(t, svc.Ready(t.Context()))
		require.Equal(t, 5, attempts)
		took := time.Since(begun)
		require.GreaterOrEqual(t, took, 1500*time.Millisecond, "100, 200, 400, 800 ms")
		require.LessOrEqual(t, took, 1650*time.Millisecond, "and a tenth of jitter")
	})
}

func TestLazyReadySaysWhyItIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.Lazy(func() (layer.Service[string, string], error) { return nil, errLazy })
		err := layer.Poll(svc)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.ErrorContains(t, err, "no file")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err = svc.Ready(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no file")

		gone := layer.Lazy(func() (layer.Service[string, string], error) { return nil, layer.ErrClosed })
		require.ErrorIs(t, gone.Ready(t.Context()), layer.ErrClosed)
	})
}
