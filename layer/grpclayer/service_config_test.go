package grpclayer

import (
	"context"
	"sync/atomic"
	"testing"

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

// gRPC ignores a default config, because our resolver provides one.
func TestServiceConfigDefault(t *testing.T) {
	s := listen(t)
	for _, config := range []string{retryConfig, `{"loadBalancingConfig": [{"round_robin": {}}]}`} {
		var seen layer.Describer
		cc, err := grpc.NewClient(name+":///web", append(DialOptions(name, newSource(replace(s.addr), replace(s.addr)),
			WithOnBalancer(func(d layer.Describer) { seen = d })),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(config))...)
		require.NoError(t, err)
		_, err = call(t.Context(), cc)
		require.NoError(t, err)
		require.NotNil(t, seen, "our balancer is in use")
		assert.Contains(t, seen.Describe().String(), s.addr)
		require.NoError(t, cc.Close())
	}
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
