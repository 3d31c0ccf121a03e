package outbound

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// If the policy specifies a circuit breaker, the balancer ignores failed responses: the failing
// endpoint gets requests until its breaker opens. Otherwise the balancer avoids it earlier.
func TestBalancerOfPolicyWithBreaker(t *testing.T) {
	const failures = 50
	requestsToFailing := func(t *testing.T, b profiles.Balancing) (n int) {
		web := &backend{authority: "web:80", balancing: setting.New(b)}
		mk := web.withBreaker(func(_ context.Context, target discover.Target) httplayer.Service {
			failing := target.Endpoint.Addr == netip.MustParseAddrPort("10.0.0.1:80")
			return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
				time.Sleep(time.Millisecond) // equal latencies
				if failing {
					n++
					return &http.Response{StatusCode: http.StatusInternalServerError, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		endpoints, err := static.Endpoints("10.0.0.1:80", "10.0.0.2:80")
		require.NoError(t, err)
		svc := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{web.authority: endpoints}), balance.Config{Target: web.authority}, mk,
			balance.WithClassifier(web.classify))
		web.follow(ctx, svc, slog.New(slog.DiscardHandler))
		require.NoError(t, svc.Ready(ctx))
		for range 20 * failures {
			rsp, err := svc.Call(ctx, &http.Request{})
			require.NoError(t, err)
			require.NoError(t, rsp.Body.Close())
		}
		return n
	}
	breaker := layer.BreakerPolicy{ConsecutiveFailures: failures}
	synctest.Test(t, func(t *testing.T) {
		assert.Equal(t, failures, requestsToFailing(t, profiles.Balancing{Breaker: breaker}))
		assert.Less(t, requestsToFailing(t, profiles.Balancing{}), failures)
	})

	classify := func(b profiles.Balancing, o layer.Outcome[*http.Response]) layer.Class {
		return (&backend{balancing: setting.New(b)}).classify(o)
	}
	failed := layer.Outcome[*http.Response]{Response: &http.Response{StatusCode: http.StatusInternalServerError}}
	assert.Equal(t, layer.Failure, classify(profiles.Balancing{Breaker: breaker, Penalty: 1}, failed), "a policy with a penalty")
	failed = layer.Outcome[*http.Response]{Err: http.ErrHandlerTimeout}
	assert.True(t, classify(profiles.Balancing{Breaker: breaker}, failed).IsFailure(), "no response")
}
