package kitlayer_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/kitlayer"
)

// A Retry in the stack works without settings: a server that is unavailable
// once is called again.
func TestStackRetry(t *testing.T) {
	server := sums(t, kitlayer.NewStack[sumRequest, sumResponse]())
	var calls atomic.Int64
	inner := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		inner.ServeHTTP(w, r)
	})
	svc := client(t, server, kitlayer.NewStack[sumRequest, sumResponse]().Retry(layer.RetryPolicy[sumRequest, sumResponse]{}))
	rsp, err := svc.Call(t.Context(), sumRequest{19, 23})
	require.NoError(t, err)
	assert.Equal(t, 42, rsp.Sum)
	assert.EqualValues(t, 2, calls.Load())

	calls.Store(1)
	rsp, err = svc.Call(t.Context(), sumRequest{-1, 1})
	require.NoError(t, err)
	require.EqualError(t, rsp.Failed(), "sum: negative")
	assert.EqualValues(t, 2, calls.Load(), "a business error is not tried again")
}

// payment has a field that is not an HTTP method.
type payment struct{ Method string }

// The names of the fields of a request do not affect retries.
func TestStackRetryFields(t *testing.T) {
	calls := 0
	svc := kitlayer.NewStack[*payment, int]().
		Retry(layer.RetryPolicy[*payment, int]{CanRetry: nil}).
		Service(kitlayer.Service[*payment, int](func(context.Context, any) (any, error) {
			if calls++; calls == 1 {
				return nil, errBroken
			}
			return calls, nil
		}))
	rsp, err := svc.Call(t.Context(), &payment{Method: "card"})
	require.NoError(t, err)
	assert.Equal(t, 2, rsp)
}

// A breaker opens on errors of the endpoint, and stays closed on business
// errors.
func TestStackBreaker(t *testing.T) {
	breaker := func(answer any, err error) layer.Service[int, failing] {
		return kitlayer.NewStack[int, failing]().
			Breaker(layer.BreakerPolicy{ConsecutiveFailures: 2}).
			Service(kitlayer.Service[int, failing](func(context.Context, any) (any, error) { return answer, err }))
	}
	business, broken := breaker(failing{errBroken}, nil), breaker(nil, errBroken)
	for range 10 {
		rsp, err := business.Call(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, errBroken, rsp.Failed())
		_, err = broken.Call(t.Context(), 1)
		require.Error(t, err)
	}
	_, err := broken.Call(t.Context(), 1)
	require.ErrorIs(t, err, layer.ErrNotReady, "the breaker is open")
}
