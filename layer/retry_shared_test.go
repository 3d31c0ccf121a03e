package layer_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// Each attempt can read the endpoints of earlier attempts from its context.
func TestRetryAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		svc := retrying(retryPolicy{}, func(ctx context.Context, try int, _ *retryRequest) (*response, error) {
			tries := layer.AttemptsFromContext(ctx)
			seen = append(seen, fmt.Sprint(tries.Len(), tries.Has(try-1)))
			tries.Add(try)
			return nil, errServer
		})
		_, err := svc.Call(t.Context(), &retryRequest{})
		require.Error(t, err)
		require.Equal(t, []string{"0 false", "1 true", "2 true"}, seen)

		above := new(layer.Attempts)
		svc = retrying(retryPolicy{}, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
			assert.Same(t, above, layer.AttemptsFromContext(ctx))
			return &response{}, nil
		})
		_, err = svc.Call(layer.WithAttempts(t.Context(), above), &retryRequest{})
		require.NoError(t, err)
	})
}

// moonrhythm/parapet#223: nested retries multiply. Here only the outer one retries. If the
// outer one may not retry, the inner one does.
func TestRetryNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for method, wantOuter := range map[string]int{"GET": 2, "POST": 0} {
			sent := 0
			budget := layer.NewBudget(0, 1, -1)
			budget.Deposit()
			budget.Deposit()
			inner := retrying(retryPolicy{
				Budget: budget, CanRetry: func(*retryRequest) bool { return true },
			}, alwaysFails(&sent))
			outer := layer.Retry(retryPolicy{Budget: budget}, layer.WithClassifier(failuresAgain[*response]))(inner)
			_, err := outer.Call(t.Context(), &retryRequest{Method: method})
			require.ErrorIs(t, err, errServer)
			assert.Equal(t, 3, sent, method)
			assert.EqualValues(t, wantOuter, state(outer, "retries"), method)
			assert.EqualValues(t, 2-wantOuter, state(inner, "retries"), method)
		}
	})
}

// AttemptTimeout also limits an attempt of a Retry above, which then makes its next
// attempt.
func TestRetryNestedAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		inner := retrying(retryPolicy{AttemptTimeout: time.Second}, func(ctx context.Context, _ int, _ *retryRequest) (*response, error) {
			if sent++; sent == 2 {
				return &response{Body: io.NopCloser(strings.NewReader(""))}, nil
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		outer := layer.Retry(retryPolicy{}, layer.WithClassifier(failuresAgain[*response]))(inner)
		began := time.Now()
		rsp, err := outer.Call(t.Context(), &retryRequest{Method: "GET"})
		require.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second)
		assert.Equal(t, 2, sent)
		assert.EqualValues(t, 1, state(outer, "retries"))
		assert.EqualValues(t, 0, state(inner, "retries"))
		require.NoError(t, rsp.Body.Close())
	})
}

// Retries of stacks with the same Budget are limited together.
func TestRetrySharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := layer.NewBudget(time.Minute, -1, 1)
		sent := 0
		a, b := retrying(retryPolicy{Budget: budget}, alwaysFails(&sent)), retrying(retryPolicy{Budget: budget}, alwaysFails(&sent))
		for range 100 {
			for _, svc := range []layer.Service[*retryRequest, *response]{a, b} {
				_, err := svc.Call(t.Context(), &retryRequest{})
				require.Error(t, err)
			}
		}
		assert.GreaterOrEqual(t, sent, 260)
		assert.LessOrEqual(t, sent, 275)
	})
}

// If the caller cancels during an attempt, the error of the attempt is returned unchanged.
func TestRetryCanceledInAttempt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	given := &response{Body: &closeable{}}
	svc := retrying(retryPolicy{}, func(context.Context, int, *retryRequest) (*response, error) {
		cancel()
		return given, nil
	}, layer.WithClassifier(func(layer.Outcome[*response]) layer.Class { return layer.Retryable }))
	rsp, err := svc.Call(ctx, &retryRequest{})
	require.NoError(t, err)
	require.Same(t, given, rsp)
	require.False(t, given.Body.(*closeable).closed)
}

// The body of an earlier attempt cannot be read any more. A body that was prepared but not
// sent is closed.
func TestRetryBodiesOfEarlierAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		source := sourceOf("hello")
		var bodies []io.ReadCloser
		svc := retrying(retryPolicy{}, func(_ context.Context, try int, req *retryRequest) (*response, error) {
			bodies = append(bodies, req.Body)
			if try == 2 {
				_, err := bodies[0].Read(make([]byte, 1))
				assert.ErrorContains(t, err, "earlier attempt")
				go func() {
					time.Sleep(time.Millisecond)
					cancel()
				}()
			}
			return nil, errServer // without closing the body
		})
		_, err := svc.Call(ctx, &retryRequest{Body: source})
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, bodies, 2)
		require.EqualValues(t, 1, source.closes.Load())
	})
}
