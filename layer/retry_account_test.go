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

// A retry that was paid for and refused below costs nothing, however it goes on.
func TestRetryThatIsRefusedIsGivenBack(t *testing.T) {
	refused := func(context.Context, int, *retryRequest) (*response, error) { return nil, layer.ErrNotReady }
	for name, tt := range map[string]struct {
		policy retryPolicy
		later  retryInner // what follows the failure of the first try
		spent  int
	}{
		"passed on":           {retryPolicy{PassRejections: true}, refused, 0},
		"refused to the last": {retryPolicy{MaxAttempts: 5}, refused, 0},
		"fail-fast": {retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) {
			return nil, layer.ErrFailFast
		}, 0},
		"refused, then sent": {retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try == 2 {
				return nil, layer.ErrNotReady
			}
			return bodyOf("fine"), nil
		}, 1},
		"sent, then refused": {retryPolicy{}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try == 2 {
				return nil, errServer
			}
			return nil, layer.ErrNotReady
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := layer.NewBudget(0, -1, 1)
				tt.policy.Budget = budget
				svc := retrying(tt.policy, func(ctx context.Context, try int, req *retryRequest) (*response, error) {
					if try == 1 {
						return nil, errServer
					}
					return tt.later(ctx, try, req)
				})
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.NotErrorIs(t, err, layer.ErrNotReady)
				assert.Equal(t, 10-tt.spent, budget.Balance())
			})
		})
	}
}

// What is given back is the entry of the retry itself: if it were the youngest,
// that one would be forgotten before its time.
func TestBudgetForgetsTheRetryThatWasGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(time.Second, -1, 2)
		svc := retrying(retryPolicy{Budget: budget, PassRejections: true, Backoff: layer.Backoff{Min: 1, Max: 1}},
			func(_ context.Context, try int, _ *retryRequest) (*response, error) {
				if try == 1 {
					return nil, errServer
				}
				time.Sleep(500 * time.Millisecond)
				assert.True(t, budget.Withdraw(), "of another request")
				time.Sleep(100 * time.Millisecond)
				return nil, layer.ErrNotReady
			})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.ErrorIs(t, err, layer.ErrRetryRejected)
		require.Equal(t, 1, budget.Balance())
		time.Sleep(600 * time.Millisecond)
		require.Equal(t, 1, budget.Balance(), "the other is 700 ms old")
		time.Sleep(400 * time.Millisecond)
		require.Equal(t, 2, budget.Balance())
	})
}

// It may be given back when it counts no more.
func TestBudgetOfARetryThatWasRefusedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(time.Second, -1, 2)
		svc := retrying(retryPolicy{Budget: budget, PassRejections: true}, func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try == 1 {
				return nil, errServer
			}
			time.Sleep(5 * time.Second)
			assert.Equal(t, 2, budget.Balance())
			return nil, layer.ErrNotReady
		})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.ErrorIs(t, err, layer.ErrRetryRejected)
		require.Equal(t, 2, budget.Balance())
		require.True(t, budget.Withdraw())
		require.True(t, budget.Withdraw())
		require.False(t, budget.Withdraw())
	})
}

func unreachedPolicy(budget *layer.Budget) retryPolicy {
	return retryPolicy{
		Budget: budget, MaxAttempts: 4, PassRejections: true, MaxRetryAfter: time.Second, Backoff: layer.Backoff{Min: 1, Max: 1},
		RetryConnectFailure: func(error) bool { return true },
	}
}

func unreached(after time.Duration) error {
	return &layer.Error{Layer: "endpoint", Endpoint: "10.0.0.1:80", Kind: layer.ErrNotReady, Reason: "no connection", RetryAfter: after, Err: errServer}
}

// A refusal that counts as a failure waits for its After, and is paid for.
func TestRetryOfTheUnreached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, began := layer.NewBudget(0, -1, 1), time.Now()
		svc := retrying(unreachedPolicy(budget), func(_ context.Context, try int, _ *retryRequest) (*response, error) {
			if try < 4 {
				return nil, unreached(100 * time.Millisecond)
			}
			return bodyOf("fine"), nil
		})
		rsp, err := svc.Call(t.Context(), &retryRequest{Method: "POST"})
		require.NoError(t, err)
		readsAs(t, rsp.Body, "fine")
		require.Equal(t, 300*time.Millisecond, time.Since(began))
		require.Equal(t, 7, budget.Balance())
	})
}

func TestRetryOfTheUnreachedEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		after  time.Duration
		budget *layer.Budget
		err    error
		want   string
		tries  int
		spent  int
		sent   bool
	}{
		"by tries":   {10 * time.Millisecond, nil, nil, "retry 10.0.0.1:80: 4 tries (waited 30ms): endpoint 10.0.0.1:80: not ready", 4, 3, false},
		"by After":   {2 * time.Second, nil, nil, "told to wait for longer than allowed", 1, 0, false},
		"by budget":  {0, noBudget(), nil, "no budget", 1, 0, false},
		"closed":     {0, nil, layer.ErrClosed, "closed", 1, 0, false},
		"failing":    {0, nil, layer.ErrFailFast, "fail-fast", 1, 0, false},
		"other kind": {0, nil, errServer, "server failed", 1, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget, n := tt.budget, 0
				if budget == nil {
					budget = layer.NewBudget(0, -1, 1)
				}
				full := budget.Balance()
				svc := retrying(unreachedPolicy(budget), func(context.Context, int, *retryRequest) (*response, error) {
					n++
					if tt.err != nil {
						return nil, tt.err
					}
					return nil, unreached(tt.after)
				}, layer.WithClassifier(layer.DefaultClassifier[*response]))
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.ErrorContains(t, err, tt.want)
				require.Equal(t, !tt.sent, errors.Is(err, layer.ErrNotReady))
				require.Equal(t, tt.tries, n)
				require.Equal(t, full-tt.spent, budget.Balance())
			})
		})
	}
}
