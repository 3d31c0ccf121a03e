package grpclayer

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

const retryConfig = `{"methodConfig": [{
	"name": [{"service": "grpc.testing.TestService"}],
	"retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.001s",
		"backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// unavailableAtFirst is an interceptor that rejects n calls.
func unavailableAtFirst(n int64) (grpc.ServerOption, *atomic.Int64) {
	calls := new(atomic.Int64)
	return grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if calls.Add(1) <= n {
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		return h(ctx, req)
	}), calls
}

// A service config with only a retryPolicy keeps our balancer, and gRPC
// retries.
func TestServiceConfigRetryPolicy(t *testing.T) {
	refuse, calls := unavailableAtFirst(2)
	s := listen(t, refuse)
	var seen layer.Describer
	cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(s.addr)),
		WithServiceConfig(retryConfig), WithOnBalancer(func(d layer.Describer) { seen = d })),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	defer cc.Close()
	who, err := call(t.Context(), cc)
	require.NoError(t, err)
	assert.Equal(t, s.addr, who)
	assert.EqualValues(t, 3, calls.Load())
	require.NotNil(t, seen, "our balancer is in use")
	assert.Contains(t, seen.Describe().String(), s.addr)
}

// A default config that selects our balancer is used. One that selects another is refused, because gRPC would
// silently use that balancer.
func TestServiceConfigDefault(t *testing.T) {
	refuse, calls := unavailableAtFirst(2)
	s := listen(t, refuse)
	client := func(config string) *grpc.ClientConn {
		cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(s.addr), replace(s.addr))),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(config))...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cc.Close()) })
		return cc
	}
	for _, config := range []string{retryConfig, `{"loadBalancingConfig": [{"round_robin": {}}]}`} {
		cc := client(config)
		require.Eventually(t, func() bool { // the first call may get an error of the other balancer
			_, err := call(t.Context(), cc)
			require.Error(t, err)
			return strings.Contains(err.Error(), "pass the service config to grpclayer.WithServiceConfig")
		}, time.Minute, time.Millisecond)
	}
	_, err := call(t.Context(), client(serviceConfig(retryConfig, name)))
	require.NoError(t, err)
	require.EqualValues(t, 3, calls.Load())
}

// gRPC reports the error of an invalid config.
func TestServiceConfigInvalid(t *testing.T) {
	for _, config := range []string{"{", "[]", `{"methodConfig": 1}`} {
		_, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(), WithServiceConfig(config)),
			grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		require.ErrorContains(t, err, "invalid", config)
	}
}

func TestServiceConfigMerge(t *testing.T) {
	ours := `{"loadBalancingConfig":[{"tower":{}}]}`
	for given, want := range map[string]string{
		"":                                   ours,
		"{}":                                 ours,
		`{"healthCheckConfig":{"a":1}}`:      `{"healthCheckConfig":{"a":1},"loadBalancingConfig":[{"tower":{}}]}`,
		`{"loadbalancingconfig":[{"x":{}}]}`: ours,
		`{"loadBalancingConfig":[{"x":{}}]}`: ours,
		"{":                                  "{",
	} {
		assert.Equal(t, want, serviceConfig(given, "tower"))
	}
}
