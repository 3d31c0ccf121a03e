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

// onceServer serves one request at a time in FIFO order. It serves a request to its end
// even if the caller has canceled it.
type onceServer struct {
	takes time.Duration // each request

	mu    sync.Mutex
	until time.Time // busy
	seen  int
}

func (s *onceServer) Ready(context.Context) error { return nil }

func (s *onceServer) Call(ctx context.Context, req int) (int, error) {
	s.mu.Lock()
	now := time.Now()
	if s.until.Before(now) {
		s.until = now
	}
	s.until = s.until.Add(s.takes)
	s.seen++
	answer := s.until.Sub(now)
	s.mu.Unlock()
	select {
	case <-time.After(answer):
		return req, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// stall makes the server idle for d.
func (s *onceServer) stall(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(d)
}

func (s *onceServer) behind() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.until)
}

// openLoop sends rate requests a second independently of the results, and records which
// requests failed by the time of their start.
func openLoop(svc layer.Service[int, int], rate int, d time.Duration, failed *sync.Map) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Go(func() {
		for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second / time.Duration(rate)) {
			sent := time.Now()
			all.Go(func() {
				if _, err := svc.Call(context.Background(), 1); err != nil {
					failed.Store(sent, err)
				}
			})
		}
	})
	return &all
}

// After PierreZ/moonpool#193: 50 requests per second, a server that can serve 160, and a
// stall of 650 ms. Unlimited retries keep the server busy with canceled requests, and it
// never recovers. With the budget it recovers.
func TestRetryStorm(t *testing.T) {
	const rate, warmUp, trigger, after = 50, 10 * time.Second, 650 * time.Millisecond, 15 * time.Second
	run := func(t *testing.T, budget *layer.Budget) (late int, behind time.Duration, seen int) {
		server := &onceServer{takes: time.Second / 160}
		svc := layer.Retry[int, int](layer.RetryPolicy[int, int]{Budget: budget, MaxAttempts: 5, AttemptTimeout: 200 * time.Millisecond})(server)
		var failed sync.Map
		all := openLoop(svc, rate, warmUp+trigger+after, &failed)
		time.Sleep(warmUp)
		failed.Range(func(any, any) bool { t.Error("a request failed before the trigger"); return false })
		server.stall(trigger)
		time.Sleep(trigger + 5*time.Second)
		recovered := time.Now()
		time.Sleep(after - 5*time.Second)
		behind = server.behind()
		all.Wait()
		failed.Range(func(sent, err any) bool {
			require.ErrorIs(t, err.(error), layer.ErrAttemptTimeout)
			if sent.(time.Time).After(recovered) {
				late++
			}
			return true
		})
		return late, behind, server.seen
	}
	const requests = int(rate * (warmUp + trigger + after) / time.Second)
	synctest.Test(t, func(t *testing.T) {
		late, behind, seen := run(t, nil)
		assert.Zero(t, late, "requests that failed 5 s after the trigger")
		assert.Less(t, behind, 50*time.Millisecond)
		assert.LessOrEqual(t, seen, requests*12/10+10*int((warmUp+trigger+after)/time.Second)+100)
	})
	synctest.Test(t, func(t *testing.T) { // and the test bites
		late, behind, seen := run(t, layer.NewBudget(time.Minute, 10, 1_000_000))
		assert.Greater(t, late, 400, "requests that failed 5 s after the trigger, of 500")
		assert.Greater(t, behind, 5*time.Second)
		assert.Greater(t, seen, 2*requests)
	})
}

// otherProcess returns a context as it arrives in another process. It ends with ctx, but
// has no values.
type otherProcess struct{ context.Context }

func (otherProcess) Value(any) any { return nil }

// Three tiers retry over a leaf that fails. Without budgets, one request becomes 27. With
// budgets, each tier adds a fifth, and its ten retries per second.
func TestRetryThreeTiers(t *testing.T) {
	const rate, lasts = 50, 30 * time.Second
	run := func(t *testing.T, budget func() *layer.Budget) (seen [4]int64) {
		var counts [4]atomic.Int64
		var svc layer.Service[int, int] = layer.Func[int, int](func(context.Context, int) (int, error) {
			counts[3].Add(1)
			return 0, errServer
		})
		for tier := 2; tier >= 0; tier-- {
			next := layer.Retry(layer.RetryPolicy[int, int]{Budget: budget()}, layer.WithClassifier(failuresAgain[int]))(svc)
			svc = layer.Func[int, int](func(ctx context.Context, req int) (int, error) {
				counts[tier].Add(1)
				_, err := next.Call(otherProcess{ctx}, req)
				if errors.Is(err, errServer) {
					err = errServer // what another process hears of it
				}
				return 0, err
			})
		}
		var failed sync.Map
		openLoop(svc, rate, lasts, &failed).Wait()
		for i := range counts {
			seen[i] = counts[i].Load()
		}
		return seen
	}
	synctest.Test(t, func(t *testing.T) {
		seen := run(t, func() *layer.Budget { return nil })
		for tier := range 3 {
			most := seen[tier]*12/10 + 10*int64(lasts/time.Second) + 100 // which it has at the beginning
			assert.LessOrEqual(t, seen[tier+1], most, "tier %d: %v", tier, seen)
			assert.Greater(t, seen[tier+1], seen[tier], "and it does retry")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		seen := run(t, func() *layer.Budget { return layer.NewBudget(time.Minute, 10, 1_000_000) })
		assert.Greater(t, seen[3], 26*seen[0], "%v", seen)
	})
}
