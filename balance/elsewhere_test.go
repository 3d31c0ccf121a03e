package balance_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A request that is sent again goes to an endpoint that it has not tried, until it has
// tried all (envoyproxy/envoy#2259, grpc/proposal#12).
func TestRetryUntriedEndpoint(t *testing.T) {
	const n = 10
	for round := range 50 {
		b, _ := of(t, n)
		tries := new(layer.Attempts)
		ctx := layer.WithAttempts(t.Context(), tries)
		for i := range n {
			_, err := b.Call(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, i+1, tries.Len(), "round %d: somewhere it has been", round)
		}
		_, err := b.Call(ctx, 1)
		require.NoError(t, err, "it has been everywhere, and may go anywhere")
		require.Equal(t, n, tries.Len())
	}
}

func TestRetryAttemptsOfOthers(t *testing.T) {
	b, _ := of(t, 2)
	for range 20 {
		tries := new(layer.Attempts)
		_, err := b.Call(layer.WithAttempts(t.Context(), tries), 1)
		require.NoError(t, err)
		assert.Equal(t, 1, tries.Len())
	}
}

// In a large set the few tried endpoints are skipped.
func TestRetryOfManyEndpoints(t *testing.T) {
	b, _ := of(t, 1000)
	tries := new(layer.Attempts)
	ctx := layer.WithAttempts(t.Context(), tries)
	for i := range 10 {
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, i+1, tries.Len())
	}
}

// A context with attempts and a second pick, as in a retry.
func BenchmarkPickElsewhere(b *testing.B) {
	svc, _ := of(b, 100)
	b.ReportAllocs()
	for b.Loop() {
		tries := new(layer.Attempts)
		ctx := layer.WithAttempts(context.Background(), tries)
		_, _ = svc.Call(ctx, 1)
		_, _ = svc.Call(ctx, 1)
	}
}

// An endpoint that always fails gets one attempt of a request, so that a request to ten
// endpoints with one failing never fails.
func TestRetryLayer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t, neverFailing())
		all := servers(10)
		for _, s := range all[1:] {
			s.serve = func(context.Context, string) (*response, error) {
				time.Sleep(10 * time.Millisecond)
				return body("well"), nil
			}
		}
		all[0].serve = func(context.Context, string) (*response, error) { return nil, errBroken }
		p.add(all...)
		svc := layer.NewStack[string](layer.WithClassifier(func(o layer.Outcome[*response]) layer.Class {
			if errors.Is(o.Err, errBroken) {
				return layer.Retryable
			}
			return layer.DefaultClassifier(o)
		})).Retry(layer.RetryPolicy[string, *response]{MaxAttempts: 2, Budget: layer.NewBudget(0, 0, 1000)}).Service(p.balancer)
		for range 500 {
			rsp, err := svc.Call(t.Context(), "")
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		require.Greater(t, all[0].calls.Load(), int64(10), "it was never asked, and nothing was shown")
	})
}

var errBroken = errors.New("broken")

// A hedge goes to another endpoint.
func TestHedgeLayer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool(t)
		both := servers(2)
		p.add(both...)
		svc := layer.NewStack[string, *response]().
			Hedge(layer.HedgePolicy[string]{MinDelay: time.Second, MaxDelay: time.Second, Budget: layer.NewBudget(0, 0, 1000)}).
			Service(p.balancer)
		for _, s := range both {
			s.serve = func(ctx context.Context, _ string) (*response, error) {
				if both[0].calls.Load()+both[1].calls.Load() == 1 { // the first of the two
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return body("well"), nil
			}
		}
		rsp, err := svc.Call(t.Context(), "")
		require.NoError(t, err)
		require.NoError(t, rsp.Body.Close())
		require.EqualValues(t, 1, both[0].calls.Load())
		require.EqualValues(t, 1, both[1].calls.Load())
	})
}
