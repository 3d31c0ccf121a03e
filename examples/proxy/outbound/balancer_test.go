package outbound

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// With a circuit breaker of the policy, the balancer ignores failed responses: the failing
// endpoint gets requests until its breaker opens. Otherwise the balancer avoids it earlier.
func TestBalancerOfPolicyWithBreaker(t *testing.T) {
	const failures = 50
	requestsToFailing := func(t *testing.T, b profiles.Balancing) (n int) {
		key := balancerKey{authority: "web:80", Balancing: b}
		mk := key.withBreaker(func(_ context.Context, target discover.Target) httplayer.Service {
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
		svc := balance.Resolve(ctx, static.New(map[string][]resolve.Endpoint{key.authority: endpoints}), key.authority, mk,
			balance.WithPolicy[*http.Response](key.policy()), balance.WithClassifier(key.classifier()))
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

	penalized := balancerKey{Balancing: profiles.Balancing{Breaker: breaker, Penalty: 1}}
	failed := layer.Outcome[*http.Response]{Response: &http.Response{StatusCode: http.StatusInternalServerError}}
	assert.Equal(t, layer.Failure, penalized.classifier()(failed), "a policy with a penalty")
	failed = layer.Outcome[*http.Response]{Err: http.ErrHandlerTimeout}
	assert.True(t, balancerKey{Balancing: profiles.Balancing{Breaker: breaker}}.classifier()(failed).IsFailure(), "no response")
}
