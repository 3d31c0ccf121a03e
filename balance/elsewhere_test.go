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

// Whatever the latencies, a request that is sent again goes where it has not
// been, until it has been everywhere (envoyproxy/envoy#2259, grpc/proposal#12).
func TestSentAgainGoesElsewhere(t *testing.T) {
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

func TestTriesOfOthersDoNotMatter(t *testing.T) {
	b, _ := of(t, 2)
	for range 20 {
		tries := new(layer.Attempts)
		_, err := b.Call(layer.WithAttempts(t.Context(), tries), 1)
		require.NoError(t, err)
		assert.Equal(t, 1, tries.Len())
	}
}

// In a set that is much larger than what is looked at, the few places where the
// request has been are passed over.
func TestSentAgainAmongMany(t *testing.T) {
	b, _ := of(t, 1000)
	tries := new(layer.Attempts)
	ctx := layer.WithAttempts(t.Context(), tries)
	for i := range 10 {
		_, err := b.Call(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, i+1, tries.Len())
	}
}

// The context, the Tries and a second pick, as a retry would have it.
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

// An endpoint that fails each time is one try of a request, never two, and so a
// request in front of nine good ones never fails.
func TestRetryGoesElsewhere(t *testing.T) {
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

// The copy of a slow request goes to another endpoint.
func TestHedgeGoesElsewhere(t *testing.T) {
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
