package layer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// noRoom is a leaf with requests that last for a minute.
func noRoom(ctx context.Context, _ int) (int, error) {
	select {
	case <-time.After(time.Minute):
		return 0, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// A request that was shed is not sent again.
func TestRetryShedRequests(t *testing.T) {
	key := func(int) int { return 1 }
	normal := context.Background()
	low := layer.WithPriority(normal, layer.PriorityBulk)
	for name, tt := range map[string]struct {
		of     layer.Layer[int, int]
		before []context.Context // those of the requests that take what room there is
	}{
		"limit":    {layer.Limit[int, int](1), []context.Context{normal}},
		"adaptive": {layer.AdaptiveLimit[int, int](layer.AdaptivePolicy{Min: 1, Max: 1, Initial: 1}), []context.Context{normal}},
		"rate":     {layer.RateLimit[int, int](1, 1), []context.Context{normal}},
		"rate_by":  {layer.RateLimitBy[int, int, int](key, 1, 1, 10), []context.Context{normal}},
		"queue, full": {
			layer.NewStack[int, int]().Queue(1, time.Hour).Limit(1).Layer(), []context.Context{normal, normal},
		},
		"queue, in fail-fast": {
			layer.NewStack[int, int]().Queue(1, time.Nanosecond).Limit(1).Layer(),
			[]context.Context{normal, normal},
		},
		"shed": {
			layer.NewStack[int, int]().Shed(layer.ShedPolicy{}).Limit(1).Layer(), []context.Context{normal, normal},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := tt.of(layer.Func[int, int](noRoom))
				for _, ctx := range tt.before {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					go svc.Call(ctx, 1) // takes room
					time.Sleep(time.Microsecond)
				}
				budget, began := layer.NewBudget(0, -1, 1), time.Now()
				again := layer.Retry(layer.RetryPolicy[int, int]{Budget: budget}, layer.WithClassifier(failuresAgain[int]))(svc)
				_, err := again.Call(low, 1)
				require.ErrorIs(t, err, layer.ErrNotReady)
				require.NotErrorIs(t, err, layer.ErrFailFast, "that is never tried again")
				assert.Zero(t, time.Since(began))
				assert.EqualValues(t, 0, state(again, "retries"))
				assert.Equal(t, 10, budget.Balance())
			})
		})
	}
}

// The same if a balancer returns the rejections of its endpoints, or if the first
// attempt failed.
func TestRetryShedBelowBalancer(t *testing.T) {
	_, full := layer.Limit[int, int](0)(layer.Func[int, int](echo)).Call(t.Context(), 1)
	none := &layer.Error{Layer: "balance", Kind: layer.ErrNotReady, Reason: "0 of 3 endpoints ready", Err: full}
	for name, tt := range map[string]struct {
		first error
		want  error
		tries int
	}{
		"balancer":  {none, layer.ErrNotReady, 1},
		"then shed": {errServer, layer.ErrRetryRejected, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				svc := retrying(retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
					if tries++; try == 1 {
						return nil, tt.first
					}
					return nil, full
				})
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.tries, tries)
			})
		})
	}
}

// The stack of the README without room for most requests. They are rejected at once.
func TestRetryOverFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := layer.NewStack[int](layer.WithClassifier(failuresAgain[int])).Retry(layer.RetryPolicy[int, int]{}).Queue(3, 3*time.Second).
			Limit(2).Service(layer.Func[int, int](noRoom))
		began, rejected := time.Now(), make(chan time.Duration, 30)
		ctx, cancel := context.WithCancel(t.Context())
		for range 30 {
			go func() {
				if _, err := svc.Call(ctx, 1); errors.Is(err, layer.ErrNotReady) && ctx.Err() == nil {
					rejected <- time.Since(began)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.Len(t, rejected, 25, "two are served, and three wait")
		for range 25 {
			assert.Zero(t, <-rejected)
		}
		assert.EqualValues(t, 0, state(svc, "retries"))
		cancel()
	})
}
