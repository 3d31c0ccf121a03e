package layer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var errBreaker = errors.New("the endpoint fails")

// breakerInner is a service that returns the result set by the test.
type breakerInner struct {
	mu    sync.Mutex
	serve func(ctx context.Context) error
	calls atomic.Int64
}

func (a *breakerInner) say(serve func(ctx context.Context) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serve = serve
}

func (a *breakerInner) with(err error) { a.say(func(context.Context) error { return err }) }

func (a *breakerInner) Ready(context.Context) error { return nil }

func (a *breakerInner) Call(ctx context.Context, req int) (int, error) {
	a.calls.Add(1)
	a.mu.Lock()
	serve := a.serve
	a.mu.Unlock()
	if serve == nil {
		return req, nil
	}
	return req, serve(ctx)
}

// breakerClass is a classifier that finds the class of an error in its text.
func breakerClass(o layer.Outcome[int]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, errBreakerThrottle):
		return layer.Throttled
	}
	return layer.Failure
}

var errBreakerThrottle = errors.New("not so fast")

func newBreaker(p layer.BreakerPolicy, opts ...layer.Option[int]) (layer.Service[int, int], *breakerInner) {
	a := &breakerInner{}
	return layer.Breaker[int](p, append(opts, layer.WithClassifier(breakerClass))...)(a), a
}

// breakerBackoff is a backoff without jitter.
var breakerBackoff = layer.Backoff{Min: time.Second, Max: time.Minute}

func breakerCalls(t *testing.T, svc layer.Service[int, int], n int) (err error) {
	t.Helper()
	for i := range n {
		_, err = svc.Call(t.Context(), i)
	}
	return err
}

func breakerState(svc layer.Service[int, int], key string) any {
	return layer.Describe(svc).State.Get(key)
}

func TestBreakerConsecutiveFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{Backoff: breakerBackoff}, layer.WithTarget[int]("web"))
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 6), errBreaker)
		inner.with(nil)
		require.NoError(t, breakerCalls(t, svc, 1), "a success ends the row")
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 6), errBreaker)
		require.NoError(t, layer.Poll(svc))
		require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker, "the seventh trips it and gets its own error")

		before := inner.calls.Load()
		err := breakerCalls(t, svc, 1)
		require.ErrorIs(t, err, layer.ErrNotReady)
		require.EqualError(t, err, "breaker web: not ready: 7 consecutive failures, next probe in 1s")
		after, ok := layer.RetryAfter(err)
		require.True(t, ok)
		require.Equal(t, time.Second, after)
		require.Equal(t, before, inner.calls.Load())
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.ErrorContains(t, layer.Poll(svc), "next probe in 1s")
	})
}

func TestBreakerBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 1, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		start := time.Now()
		for probes, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
			time.Sleep(wait - 1)
			require.ErrorIs(t, breakerCalls(t, svc, 1), layer.ErrNotReady, "after %v", time.Since(start))
			time.Sleep(time.Nanosecond)
			require.ErrorIs(t, breakerCalls(t, svc, 1), errBreaker, "probe %d, after %v", probes, time.Since(start))
		}
		require.EqualValues(t, 1, breakerState(svc, "trips"), "probes that fail are no trips")
		require.EqualValues(t, 4, breakerState(svc, "failed_probes"))
		require.ErrorContains(t, breakerCalls(t, svc, 1), "failed probes: 4, next probe in 16s")
		inner.with(nil)
		time.Sleep(16 * time.Second)
		require.NoError(t, breakerCalls(t, svc, 3))
		require.Equal(t, "closed", breakerState(svc, "state"))

		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Equal(t, time.Second, breakerState(svc, "next_probe"), "a success resets the backoff")
		require.EqualValues(t, 2, breakerState(svc, "trips"))
	})
}

func TestBreakerDefaults(t *testing.T) {
	p := layer.UnifiedBreaker()
	require.Equal(t, layer.BreakerPolicy{
		ConsecutiveFailures: 7, MinSuccessRate: 0.8, Window: 10 * time.Second, MinRequests: 5,
		Backoff: layer.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
	}, p)
	require.NoError(t, p.Validate())
	require.NoError(t, layer.BreakerPolicy{}.Validate())

	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 50 {
			svc, inner := newBreaker(layer.BreakerPolicy{})
			inner.with(errBreaker)
			breakerCalls(t, svc, 7)
			after, ok := layer.RetryAfter(breakerCalls(t, svc, 1))
			require.True(t, ok)
			require.GreaterOrEqual(t, after, time.Second)
			require.LessOrEqual(t, after, 1500*time.Millisecond)
			waits[after] = true
		}
		require.Greater(t, len(waits), 40, "the wait has jitter")
	})
}

func TestBreakerPolicyValidate(t *testing.T) {
	for want, p := range map[string]layer.BreakerPolicy{
		"BreakerPolicy.MinSuccessRate is 1.1, must be 0 to 1":              {MinSuccessRate: 1.1},
		"BreakerPolicy.MinSuccessRate is -0.1, must be 0 to 1":             {MinSuccessRate: -0.1},
		"BreakerPolicy.Window is 9ms, must be at least 10ms":               {Window: 9 * time.Millisecond},
		"BreakerPolicy.MinRequests is 1000001, must be 0 to 1000000":       {MinRequests: 1000001},
		"BreakerPolicy.MinRequests is -1, must be 0 to 1000000":            {MinRequests: -1},
		"BreakerPolicy.Backoff: backoff: max 1ms must be at least min 1s":  {Backoff: layer.Backoff{Min: time.Second, Max: time.Millisecond}},
		"BreakerPolicy.Backoff: backoff: jitter 101 must be from 0 to 100": {Backoff: layer.Backoff{Jitter: 101}},
		"BreakerPolicy.Backoff: backoff: min -1s must be more than 0":      {Backoff: layer.Backoff{Min: -time.Second}},
	} {
		require.EqualError(t, p.Validate(), want)
	}
	require.NoError(t, layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 1, Window: 10 * time.Millisecond, MinRequests: 1_000_000}.Validate())
	require.NoError(t, layer.BreakerPolicy{Backoff: layer.Backoff{Max: time.Millisecond}}.Validate())
	require.NoError(t, layer.BreakerPolicy{Backoff: layer.Backoff{Min: time.Hour}}.Validate())
}

func TestBreakerDisabled(t *testing.T) {
	inner := &breakerInner{}
	require.Same(t, inner, layer.Breaker[int, int](layer.BreakerPolicy{ConsecutiveFailures: -1})(inner))
}

func TestBreakerSuccessRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreaker)
		require.ErrorIs(t, breakerCalls(t, svc, 4), errBreaker, "four requests say nothing yet")
		require.NoError(t, layer.Poll(svc))
		breakerCalls(t, svc, 1)
		require.EqualError(t, breakerCalls(t, svc, 1), "breaker: not ready: 0 of 5 requests succeeded in 10s, next probe in 1s")

		inner.with(nil)
		time.Sleep(time.Second)
		require.NoError(t, breakerCalls(t, svc, 8))
		require.EqualValues(t, 7, breakerState(svc, "requests"), "the probe closes it and counts no further")
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Equal(t, 0.875, breakerState(svc, "ratio"))
		require.NoError(t, layer.Poll(svc))
		breakerCalls(t, svc, 1)
		require.ErrorContains(t, breakerCalls(t, svc, 1), "7 of 9 requests succeeded in 10s")
	})
}

// As in linkerd, the success rate is checked after every response. If a response reaches
// MinRequests, it may open the breaker, even if it is a success.
func TestBreakerSuccessRateAtMinRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 4)
		inner.with(nil)
		require.NoError(t, breakerCalls(t, svc, 1))
		require.ErrorContains(t, breakerCalls(t, svc, 1), "1 of 5 requests succeeded")
	})
}

func TestBreakerWindowExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: -1, MinSuccessRate: 0.5, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 4)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 0, breakerState(svc, "requests"))
		breakerCalls(t, svc, 4)
		require.NoError(t, layer.Poll(svc))
		time.Sleep(9 * time.Second)
		breakerCalls(t, svc, 1)
		require.Error(t, layer.Poll(svc))
	})
}

func TestBreakerThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 3, Backoff: breakerBackoff})
		inner.with(errBreaker)
		breakerCalls(t, svc, 2)
		inner.with(errBreakerThrottle)
		require.ErrorIs(t, breakerCalls(t, svc, 100), errBreakerThrottle)
		require.NoError(t, layer.Poll(svc), "it does not count in a row")
		inner.with(errBreaker)
		breakerCalls(t, svc, 1)
		require.Error(t, layer.Poll(svc), "it does not break a row")

		inner.with(errBreakerThrottle)
		time.Sleep(time.Second)
		require.ErrorIs(t, breakerCalls(t, svc, 1), errBreakerThrottle)
		require.ErrorContains(t, layer.Poll(svc), "failed probes: 1", "a probe is judged strictly")

		svc, inner = newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 3, MinSuccessRate: 0.8, Backoff: breakerBackoff})
		inner.with(errBreakerThrottle)
		breakerCalls(t, svc, 5)
		require.ErrorContains(t, layer.Poll(svc), "0 of 5 requests succeeded")
	})
}

func TestBreakerIgnorable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, MinSuccessRate: 1, MinRequests: 1, Backoff: breakerBackoff})
		for _, err := range []error{
			layer.ErrClosed, &layer.Error{Kind: layer.ErrNotReady}, &layer.Error{Kind: layer.ErrInjected}, layer.ErrFailFast,
		} {
			inner.with(err)
			require.ErrorIs(t, breakerCalls(t, svc, 10), err)
			require.NoError(t, layer.Poll(svc))
		}
		ctx, cancel := context.WithCancel(t.Context())
		inner.say(func(context.Context) error { cancel(); return context.Canceled })
		_, err := svc.Call(ctx, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, layer.Poll(svc))
		inner.say(func(context.Context) error { panic("ours") })
		require.PanicsWithValue(t, "ours", func() { breakerCalls(t, svc, 1) })
		require.NoError(t, layer.Poll(svc))
		require.EqualValues(t, 0, breakerState(svc, "requests"))
	})
}

func TestBreakerLateResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, MinSuccessRate: 0.5, Backoff: breakerBackoff})
		late := make(chan error)
		inner.say(func(context.Context) error { return <-late })
		for range 4 {
			go svc.Call(t.Context(), 0)
		}
		synctest.Wait()
		inner.with(errBreaker)
		breakerCalls(t, svc, 2)
		require.Equal(t, "open", breakerState(svc, "state"))
		late <- nil
		synctest.Wait()
		require.Equal(t, "open", breakerState(svc, "state"), "a late success does not close it")
		late <- errBreaker
		synctest.Wait()
		require.Equal(t, time.Second, breakerState(svc, "next_probe"), "a late failure does not prolong the wait")

		inner.with(nil)
		time.Sleep(time.Second)
		require.NoError(t, breakerCalls(t, svc, 1))
		late <- errBreaker
		late <- errBreaker
		synctest.Wait()
		require.Equal(t, "closed", breakerState(svc, "state"), "nor do they count after the recovery")
		require.EqualValues(t, 0, breakerState(svc, "failures"))
		require.EqualValues(t, 0, breakerState(svc, "requests"))
	})
}

type breakerWaits struct{ layer.Replayer[int, int] }

func (breakerWaits) RetryAfter(int, error) (time.Duration, bool) { return 5 * time.Second, true }

func TestBreakerRetryAfter(t *testing.T) {
	hint := &layer.Error{Kind: errBreaker, RetryAfter: 30 * time.Second}
	for name, tt := range map[string]struct {
		policy layer.BreakerPolicy
		opts   []layer.Option[int]
		want   time.Duration
	}{
		"ignored":            {policy: layer.BreakerPolicy{}, want: time.Second},
		"from the error":     {policy: layer.BreakerPolicy{RetryAfter: true}, want: 30 * time.Second},
		"from the protocol":  {layer.BreakerPolicy{RetryAfter: true}, []layer.Option[int]{layer.WithReplayer[int, int](breakerWaits{})}, 5 * time.Second},
		"no longer than Max": {policy: layer.BreakerPolicy{RetryAfter: true, Backoff: layer.Backoff{Min: time.Second, Max: 9 * time.Second}}, want: 9 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.policy.ConsecutiveFailures = 1
				if tt.policy.Backoff == (layer.Backoff{}) {
					tt.policy.Backoff = breakerBackoff
				}
				svc, inner := newBreaker(tt.policy, tt.opts...)
				inner.with(hint)
				breakerCalls(t, svc, 1)
				require.Equal(t, tt.want, breakerState(svc, "next_probe"))
			})
		})
	}
}

func TestBreakerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trips counter
		var tripped gauge
		rejected := byLabel{}
		svc, inner := newBreaker(layer.BreakerPolicy{ConsecutiveFailures: 2, Backoff: breakerBackoff},
			layer.WithMetrics[int](layer.Instruments{BreakerOpened: &trips, BreakerOpen: &tripped, LayerRejections: rejected}))
		inner.with(errBreaker)
		breakerCalls(t, svc, 5)
		require.Equal(t, []float64{1, 1, 3}, []float64{float64(trips), float64(tripped), float64(*rejected["breaker"])})
		time.Sleep(time.Second)
		breakerCalls(t, svc, 1)
		time.Sleep(2 * time.Second)
		inner.with(nil)
		breakerCalls(t, svc, 1)
		require.Equal(t, []float64{1, 0, 3}, []float64{float64(trips), float64(tripped), float64(*rejected["breaker"])})
	})
}

func TestBreakerAllocations(t *testing.T) {
	svc, _ := newBreaker(layer.UnifiedBreaker())
	require.Zero(t, testing.AllocsPerRun(100, func() { svc.Call(context.Background(), 1) }))
	answer := &breakerReply{Status: 200}
	replies := newReplyBreaker(func(context.Context) *breakerReply { return answer })
	require.Zero(t, testing.AllocsPerRun(100, func() { replies.Call(context.Background(), 1) }))
}
