package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

func limitNow[Req, Rsp any](svc layer.Service[Req, Rsp]) int64 {
	return layer.Describe(svc).State.Get("limit").(int64)
}

func TestAdaptiveLimitConcurrentCallers(t *testing.T) { // joshrotenberg/tower-resilience#365: it over-admits
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		svc := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Initial: 7})(
			layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				<-hold
				return req, nil
			}))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if _, err := svc.Call(t.Context(), i); err == nil {
					admitted.Add(1)
				} else {
					assert.EqualError(t, err, "adaptive: not ready: 7 of 7 in flight")
				}
			})
		}
		synctest.Wait()
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		require.EqualValues(t, 93, layer.Describe(svc).State.Get("rejected"))
		close(hold)
		wg.Wait()
		require.EqualValues(t, 7, admitted.Load())
		require.Zero(t, inFlight(svc))
	})
}

// adaptiveServer is a server with a fixed number of workers, on real goroutines.
type adaptiveServer struct {
	workers chan struct{}
	takes   time.Duration
}

func (s *adaptiveServer) Ready(context.Context) error { return nil }

func (s *adaptiveServer) Call(_ context.Context, req int) (int, error) {
	s.workers <- struct{}{}
	time.Sleep(s.takes)
	<-s.workers
	return req, nil
}

func TestAdaptiveLimitFindsCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now gauge
		svc := layer.AdaptiveLimit[int](layer.AdaptivePolicy{}, layer.WithMetrics[int](layer.Instruments{Limit: &now}))(
			&adaptiveServer{workers: make(chan struct{}, 20), takes: 20 * time.Millisecond}) // 1000 a second
		var served atomic.Int64
		var slowest atomic.Int64
		var wg sync.WaitGroup
		for i := range 6000 { // at 2000 a second
			wg.Go(func() {
				began := time.Now()
				if _, err := svc.Call(t.Context(), i); err == nil {
					served.Add(1)
					slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				}
			})
			time.Sleep(500 * time.Microsecond)
		}
		wg.Wait()
		assert.GreaterOrEqual(t, served.Load(), int64(2700), "of 3000 that it can serve")
		assert.LessOrEqual(t, time.Duration(slowest.Load()), 100*time.Millisecond)
		assert.EqualValues(t, limitNow(svc), now)
		assert.InEpsilon(t, 20*time.Millisecond, layer.Describe(svc).State.Get("latency"), 0.001)
	})
}

func TestAdaptiveLimitGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{})(
			&adaptiveServer{workers: make(chan struct{}, 1000), takes: 20 * time.Millisecond})
		callers := func(n int) {
			for range 200 {
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() { _, _ = svc.Call(t.Context(), 1) })
				}
				wg.Wait()
			}
		}
		callers(10)
		require.EqualValues(t, 20, limitNow(svc))
		callers(40)
		require.Greater(t, limitNow(svc), int64(40))
		require.Less(t, limitNow(svc), int64(100), "40 are less than half of more")
	})
}

// Only some outcomes change the limit.
func TestAdaptiveLimitOutcomes(t *testing.T) {
	tests := map[string]struct {
		err    error
		rsp    int
		cancel bool
		moves  bool
	}{
		"a time limit":             {err: layer.ErrTimeout, moves: true},
		"a deadline":               {err: context.DeadlineExceeded, moves: true},
		"throttled":                {err: errThrottled, moves: true},
		"throttled by a response":  {rsp: -1, moves: true},
		"a failure":                {err: errors.New("boom")},
		"rejected":                 {err: layer.ErrNotReady},
		"closed":                   {err: layer.ErrClosed},
		"injected":                 {err: errors.Join(layer.ErrInjected, layer.ErrTimeout)},
		"cancelled by its caller":  {err: context.Canceled, cancel: true},
		"late, and the caller too": {err: context.DeadlineExceeded, cancel: true},
	}
	classify := layer.WithClassifier[int](func(o layer.Outcome[int]) layer.Class {
		if errors.Is(o.Err, errThrottled) || o.Ended && o.Response < 0 {
			return layer.Throttled
		}
		return layer.DefaultClassifier(o)
	})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := layer.AdaptiveLimit[context.CancelFunc](layer.AdaptivePolicy{}, classify)(
					layer.Func[context.CancelFunc, int](func(_ context.Context, cancel context.CancelFunc) (int, error) {
						time.Sleep(10 * time.Millisecond)
						if tt.cancel {
							cancel()
						}
						return tt.rsp, tt.err
					}))
				for range 100 {
					ctx, cancel := context.WithCancel(t.Context())
					_, err := svc.Call(ctx, cancel)
					require.ErrorIs(t, err, tt.err)
					cancel()
				}
				if tt.moves {
					require.Less(t, limitNow(svc), int64(20))
				} else {
					require.EqualValues(t, 20, limitNow(svc))
				}
				require.Zero(t, inFlight(svc))
			})
		})
	}
}

var errThrottled = errors.New("throttled")

func TestAdaptiveLimitSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.AdaptiveLimit[int, *response](layer.AdaptivePolicy{})(
			layer.Func[int, *response](func(context.Context, int) (*response, error) {
				time.Sleep(10 * time.Millisecond)
				return bodyOf("some words"), nil
			}))
		for range 50 {
			rsp, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.EqualValues(t, 1, inFlight(svc))
			_, err = io.ReadAll(rsp.Body)
			require.NoError(t, err)
			require.Zero(t, inFlight(svc))
		}
		require.InEpsilon(t, 10*time.Millisecond, layer.Describe(svc).State.Get("latency"), 0.001)
	})
}

// Long requests that hold all slots leave no slot for a probe. The probe ends without a
// measurement, which wakes the waiters of Ready although no request arrives.
func TestAdaptiveLimitStalledProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		svc := layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Initial: 4})(
			layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				if req == 0 {
					<-hold
				}
				time.Sleep(10 * time.Millisecond)
				return req, nil
			}))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _, _ = svc.Call(t.Context(), 0) })
		}
		synctest.Wait()
		for limitNow(svc) >= 4 {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
		}
		require.Equal(t, true, layer.Describe(svc).State.Get("probing"))
		require.ErrorIs(t, layer.Poll(svc), layer.ErrNotReady)
		began := time.Now()
		require.NoError(t, svc.Ready(t.Context()))
		require.LessOrEqual(t, time.Since(began), 90*time.Millisecond, "twice four latencies: at first one is seen to end")
		_, err := svc.Call(t.Context(), 1)
		require.NoError(t, err)
		close(hold)
		wg.Wait()
	})
}

func TestAdaptivePolicy(t *testing.T) {
	nan := math.NaN()
	for _, tt := range []struct {
		policy layer.AdaptivePolicy
		wrong  string
		limit  int64
		bounds [2]int
	}{
		{layer.AdaptivePolicy{}, "", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{}, "", 20, [2]int{1, 1000}},
		{layer.AdaptivePolicy{Max: 8}, "", 8, [2]int{1, 8}},
		{layer.AdaptivePolicy{Min: 30}, "", 30, [2]int{30, 1000}},
		{layer.AdaptivePolicy{Min: 2000}, "", 2000, [2]int{2000, 2000}},
		{layer.AdaptivePolicy{Min: 3, Max: 9, Initial: 5, Tolerance: 2, Window: time.Second}, "", 5, [2]int{3, 9}},
		{layer.AdaptivePolicy{Min: -1}, "Min is -1, must be at least 1", 0, [2]int{}},
		{layer.AdaptivePolicy{Min: 5, Max: 4}, "Max is 4, must be at least Min, 5", 0, [2]int{}},
		{layer.AdaptivePolicy{Max: -4}, "Max is -4, must be at least Min, 1", 0, [2]int{}},
		{layer.AdaptivePolicy{Max: 10, Initial: 11}, "Initial is 11, must be 1 to 10", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: 1}, "Tolerance is 1, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: 2.5}, "Tolerance is 2.5, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Tolerance: nan}, "Tolerance is NaN, must be 1.1 to 2", 0, [2]int{}},
		{layer.AdaptivePolicy{Window: time.Microsecond}, "Window is 1µs, must be 1ms to 1m", 0, [2]int{}},
		{layer.AdaptivePolicy{Window: time.Hour}, "Window is 1h0m0s, must be 1ms to 1m", 0, [2]int{}},
	} {
		err := tt.policy.Validate()
		if tt.wrong != "" {
			require.EqualError(t, err, "AdaptivePolicy."+tt.wrong)
			continue
		}
		require.NoError(t, err, "%+v", tt.policy)
		state := layer.Describe(layer.AdaptiveLimit[int, int](tt.policy)(layer.Func[int, int](echo))).State
		require.Equal(t, tt.limit, state.Get("limit"), "%+v", tt.policy)
		bounds := [2]int{state.Get("min").(int), state.Get("max").(int)}
		require.Equal(t, tt.bounds, bounds)
	}
}

// The limit may change in any way. The count of requests in flight is always exact. A
// request is admitted if and only if fewer are in flight than the limit.
func TestAdaptiveLimitModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSlotsSteps(rt)
		var problem string
		synctest.Test(t, func(t *testing.T) {
			policy := layer.AdaptivePolicy{Min: 2, Max: 12, Initial: 4, Window: time.Millisecond}
			m := &slotsModel{t: t, svc: layer.AdaptiveLimit[slotsStep, *response](policy)(slotsLeaf)}
			m.admits = func(int) bool { return int64(len(m.open)) < limitNow(m.svc) }
			m.check = func() string {
				if n := inFlight(m.svc); n != int64(len(m.open)) {
					return fmt.Sprintf("%d are in flight, it says %d", len(m.open), n)
				}
				if n := limitNow(m.svc); n < 2 || n > 12 {
					return fmt.Sprintf("the limit is %d", n)
				}
				return ""
			}
			problem = m.run(steps)
		})
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}
