package layer_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// In failsafe-go, gobreaker and finagle a half-open breaker waited for a probe that never
// ended. The probe was canceled, rejected below, or panicked. Here the next request is the
// probe.
func TestBreakerCanceledProbe(t *testing.T) {
	for name, probe := range map[string]func(t *testing.T, svc layer.Service[int, int], inner *breakerInner){
		"cancelled": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			ctx, cancel := context.WithCancel(t.Context())
			inner.say(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
			go svc.Call(ctx, 0)
			synctest.Wait()
			require.Equal(t, "probing", breakerState(svc, "state"))
			require.ErrorContains(t, breakerCalls(t, svc, 1), "a probe is in flight")
			cancel()
			synctest.Wait()
		},
		"rejected": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.with(&layer.Error{Kind: layer.ErrNotReady})
			breakerCalls(t, svc, 3)
			require.EqualValues(t, 4, inner.calls.Load(), "each of the three was a probe")
		},
		"injected": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.with(layer.ErrInjected)
			breakerCalls(t, svc, 1)
		},
		"panic": func(t *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.say(func(context.Context) error { panic("ours") })
			require.Panics(t, func() { breakerCalls(t, svc, 1) })
		},
		"goexit": func(_ *testing.T, svc layer.Service[int, int], inner *breakerInner) {
			inner.say(func(context.Context) error { runtime.Goexit(); return nil })
			go svc.Call(context.Background(), 0)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
				inner.with(errBreaker)
				breakerCalls(t, svc, 1)
				time.Sleep(time.Second)
				probe(t, svc, inner)
				require.Equal(t, "probing", breakerState(svc, "state"), "it decides nothing")
				require.NoError(t, layer.Poll(svc), "the place is free")
				inner.with(nil)
				require.NoError(t, breakerCalls(t, svc, 1))
				require.Equal(t, "closed", breakerState(svc, "state"))
			})
		})
	}
}

func TestBreakerReadyWaitsForProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second/2, errBreaker)
		defer cancel()
		require.ErrorIs(t, svc.Ready(ctx), errBreaker)
		start := time.Now()
		require.NoError(t, svc.Ready(t.Context()))
		require.Equal(t, time.Second/2, time.Since(start))

		answer := make(chan error)
		inner.say(func(context.Context) error { return <-answer })
		go svc.Call(t.Context(), 0)
		synctest.Wait()
		require.ErrorContains(t, layer.Poll(svc), "a probe is in flight")
		ready := make(chan time.Duration, 2)
		for range 2 {
			go func() {
				assert.NoError(t, svc.Ready(t.Context()))
				ready <- time.Since(start)
			}()
		}
		time.Sleep(time.Hour)
		start = time.Now()
		answer <- errBreaker
		require.Equal(t, 2*time.Second, <-ready, "the probe failed: they wait for the next")
		require.Equal(t, 2*time.Second, <-ready)
		go svc.Call(t.Context(), 0)
		synctest.Wait()
		go func() { ready <- 0; assert.NoError(t, svc.Ready(t.Context())); ready <- time.Since(start) }()
		<-ready
		synctest.Wait()
		start = time.Now()
		answer <- nil
		require.Zero(t, <-ready, "the probe succeeded: they go on")
	})
}

// breakerBusy is a service with readiness that the test sets.
type breakerBusy struct {
	breakerInner
	ready chan struct{}
}

func (b *breakerBusy) Ready(context.Context) error { <-b.ready; return nil }

// The breaker may open while Ready waits for inner.
func TestBreakerReadyOpensDuringWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &breakerBusy{ready: make(chan struct{})}
		svc := layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})(inner)
		start, done := time.Now(), make(chan time.Duration)
		go func() {
			assert.NoError(t, svc.Ready(t.Context()))
			done <- time.Since(start)
		}()
		synctest.Wait()
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		close(inner.ready)
		require.Equal(t, time.Second, <-done)
	})
}

// Many requests meet a breaker over a service that never recovers. Its probes end in every
// way, and at most one is in flight at a time.
func TestBreakerOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes, most, sent atomic.Int64
		var storm atomic.Bool
		inner := layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
			if !storm.Load() {
				return 0, errBreaker
			}
			defer probes.Add(-1)
			if n := probes.Add(1); n > 1 {
				most.Store(n)
			}
			sent.Add(1)
			time.Sleep(time.Duration(req%7) * time.Millisecond)
			switch req % 4 {
			case 0:
				return 0, errBreaker
			case 1:
				return 0, layer.ErrNotReady
			case 2:
				panic("ours")
			}
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		svc := layer.Breaker[int, int](layer.BreakerPolicy{
			ConsecutiveFailures: 1, Backoff: layer.Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond},
		})(inner)
		svc.Call(t.Context(), 0)
		storm.Store(true)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				for j := range 50 {
					ctx, cancel := context.WithCancel(t.Context())
					go func() { time.Sleep(3 * time.Millisecond); cancel() }()
					func() {
						defer func() { recover() }()
						svc.Call(ctx, i+j)
					}()
					cancel()
					time.Sleep(time.Duration(1+i%5) * time.Millisecond)
				}
			})
		}
		all.Wait()
		require.Zero(t, most.Load(), "so many at a time")
		require.Greater(t, sent.Load(), int64(10))
	})
}
