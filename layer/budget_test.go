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

func withdrawals(b *layer.Budget, atMost int) (n int) {
	for n < atMost && b.Withdraw() {
		n++
	}
	return n
}

func deposits(b *layer.Budget, n int) {
	for range n {
		b.Deposit()
	}
}

func TestBudgetDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := layer.NewBudget(0, 0, 0)
		require.Equal(t, 100, b.Balance(), "10 a second for 10 s")
		deposits(b, 100)
		require.Equal(t, 120, b.Balance(), "and a fifth of the requests")
		require.Equal(t, 120, withdrawals(b, 1000))
		require.Zero(t, b.Balance())
		time.Sleep(10*time.Second + 10*time.Second/64)
		require.Equal(t, 100, b.Balance(), "after ttl nothing is left of either")
	})
}

func TestBudgetParameterRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			ttl       time.Duration
			ratio     float64
			perSecond int
			deposits  int
			want      int
		}{
			"as given":              {2 * time.Second, 0.5, 3, 10, 11},
			"ttl too short":         {time.Millisecond, 0.5, 3, 10, 8},
			"ttl too long":          {time.Hour, 0.5, 3, 10, 185},
			"ttl below 0":           {-1, 0.5, 3, 10, 35},
			"no ratio":              {10 * time.Second, -1, 3, 10, 30},
			"ratio too high":        {10 * time.Second, 1e9, 3, 10, 130},
			"ratio not a number":    {10 * time.Second, math.NaN(), 3, 10, 32},
			"no reserve":            {10 * time.Second, 0.5, -1, 10, 5},
			"reserve too high":      {time.Second, 0.5, math.MaxInt, 10, 1_000_005},
			"neither":               {10 * time.Second, -1, -1, 10, 0},
			"a share is not enough": {10 * time.Second, 0.2, -1, 4, 0},
		} {
			b := layer.NewBudget(tt.ttl, tt.ratio, tt.perSecond)
			deposits(b, tt.deposits)
			assert.Equal(t, tt.want, b.Balance(), name)
			if tt.want == 0 {
				assert.False(t, b.Withdraw(), name)
			}
		}
	})
}

// A deposit allows withdrawals for ttl. A withdrawal counts for the same time.
func TestBudgetTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := layer.NewBudget(10*time.Second, 0.5, -1)
		deposits(b, 8)
		time.Sleep(9800 * time.Millisecond)
		require.Equal(t, 4, b.Balance())
		require.Equal(t, 1, withdrawals(b, 1))
		time.Sleep(200 * time.Millisecond)
		require.Zero(t, b.Balance())
		deposits(b, 8)
		require.Equal(t, 3, b.Balance(), "one is withdrawn within the last ttl")
		time.Sleep(9700 * time.Millisecond)
		require.Equal(t, 3, b.Balance())
		deposits(b, 8)
		time.Sleep(400 * time.Millisecond)
		require.Equal(t, 4, b.Balance(), "of each only what came within the last ttl")
		time.Sleep(24 * time.Hour)
		require.Zero(t, b.Balance())
	})
}

// tower's TpsBucket reads its sum and then withdraws from it
// (tower/src/retry/budget/tps_budget.rs, try_get). Therefore concurrent callers may all
// withdraw the last token. Here the check and the withdrawal are atomic.
func TestBudgetConcurrentWithdrawals(t *testing.T) {
	const callers, each, ratio = 64, 500, 0.25
	synctest.Test(t, func(t *testing.T) { // where time stands still, so that nothing is forgotten
		b := layer.NewBudget(time.Second, ratio, 10)
		var granted, paid atomic.Int64
		var all sync.WaitGroup
		start := make(chan struct{})
		for range callers {
			all.Go(func() {
				<-start
				for range each {
					paid.Add(1)
					b.Deposit()
					if b.Withdraw() {
						granted.Add(1)
					}
					now := granted.Load() // read before the deposits
					if most := ratio*float64(paid.Load()) + 10; float64(now) > most {
						t.Errorf("%d granted of %v", now, most)
					}
				}
			})
		}
		synctest.Wait()
		close(start)
		all.Wait()
		require.EqualValues(t, ratio*callers*each+10, granted.Load()+int64(withdrawals(b, callers*each)), "and nothing is lost")
	})
}

// The same with the real clock: withdrawals never exceed deposits while the buckets
// rotate.
func TestBudgetConcurrentRotation(t *testing.T) {
	b := layer.NewBudget(time.Second, 0.1, -1)
	var granted, paid atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range 8 {
		all.Go(func() {
			// The ttl covers several buckets, and some withdrawals are granted.
			for n := 0; n < 100 || time.Since(began) < 60*time.Millisecond; n++ {
				paid.Add(1)
				b.Deposit()
				if b.Withdraw() {
					granted.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.LessOrEqual(t, granted.Load(), paid.Load()/10)
	require.Positive(t, granted.Load())
}

func TestBudgetAllocations(t *testing.T) {
	b := layer.NewBudget(0, 0, 0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Deposit()
		b.Withdraw()
		b.Balance()
	}))
}

// After any pause without calls, deposits older than ttl allow no withdrawal.
func TestBudgetExpiryAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bucket = time.Minute / 64
		for first := range 66 {
			for pause := 65; pause < 200; pause++ {
				b := layer.NewBudget(time.Minute, 1, -1)
				time.Sleep(time.Duration(first) * bucket)
				require.Zero(t, b.Balance())
				deposits(b, 8)
				require.Equal(t, 8, b.Balance())
				time.Sleep(time.Duration(pause) * bucket)
				require.Zero(t, b.Balance(), "%d buckets after those in bucket %d", pause, first)
			}
		}
	})
}

// After many retries the gauge returns to the balance.
func TestRetryBudgetGaugeAfterStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := level{new(shared)}
		var fails atomic.Bool
		svc := layer.NewStack[int, int]().WithMetrics(layer.Instruments{Budget: shown}).
			Retry(layer.RetryPolicy[int, int]{
				Budget:   layer.NewBudget(time.Second, 0.1, 1),
				CanRetry: func(int) bool { return true },
				RetryIf:  func(o layer.Outcome[int]) bool { return o.Err != nil },
			}).
			Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) {
				if fails.Load() {
					return 0, errors.New("down")
				}
				return req, nil
			}))
		require.EqualValues(t, 1, shown.now())
		fails.Store(true)
		for range 5 {
			_, err := svc.Call(t.Context(), 1)
			require.Error(t, err)
		}
		require.Zero(t, shown.now())
		fails.Store(false)
		for range 30 {
			_, err := svc.Call(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		require.EqualValues(t, 1, shown.now())
		require.Equal(t, 1, layer.Describe(svc).State.Get("budget"))
	})
}

// A Retry that sends each request once does not set the gauge.
func TestRetryBudgetGaugeOneAttempt(t *testing.T) {
	shown := level{new(shared)}
	layer.NewStack[int, int]().WithMetrics(layer.Instruments{Budget: shown}).
		Retry(layer.RetryPolicy[int, int]{MaxAttempts: 1, AttemptTimeout: time.Second}).
		Service(layer.Func[int, int](func(_ context.Context, req int) (int, error) { return req, nil }))
	require.Zero(t, shown.now())
}
