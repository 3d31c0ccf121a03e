package grpclayer

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/resolve"
)

// WithServiceConfig adds a gRPC service config, in JSON, to that of [DialOptions]:
//
//	grpclayer.WithServiceConfig(`{"methodConfig": [{
//		"name": [{"service": "shop.Books"}],
//		"retryPolicy": {
//			"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
//		}
//	}]}`)
//
// Our balancer is added unless the config names one. An invalid config makes
// [grpc.NewClient] fail. Only [DialOptions] uses it, and the last one applies.
//
// gRPC's retries have no budget, and multiply with a Retry of [WithCallLayer].
func WithServiceConfig(config string) Option {
	return option(func(s *settings) { s.config = config })
}

// serviceConfig returns the given service config with the named balancer unless it has one. An
// invalid config is returned unchanged, because gRPC reports the error.
func serviceConfig(given, balancer string) string {
	fields := make(map[string]json.RawMessage)
	if given != "" && json.Unmarshal([]byte(given), &fields) != nil {
		return given
	}
	if fields == nil { // the config is null
		fields = make(map[string]json.RawMessage)
	}
	for field := range fields { // gRPC ignores case, too
		if strings.EqualFold(field, "loadBalancingConfig") || strings.EqualFold(field, "loadBalancingPolicy") {
			return given
		}
	}
	fields["loadBalancingConfig"] = fmt.Appendf(nil, `[{%q:{}}]`, balancer)
	merged, err := json.Marshal(fields)
	if err != nil {
		return given
	}
	return string(merged)
}

// balancerProbe reports to our resolver that a state reached our balancer.
type balancerProbe struct{ reached atomic.Bool }

// Equal is called by package attributes.
func (c *balancerProbe) Equal(o any) bool { return c == o }

// balancerProbeKey is the key of the *balancerProbe in a resolver.State.
type balancerProbeKey struct{}

// misconfiguredKey is the key of the error of all calls in a resolver.State.
type misconfiguredKey struct{}

// checkBalancer returns an error if a client with our [DialOptions] has another
// balancer. It sends a state without endpoints, which only our balancer accepts.
func (b *resolverBuilder) checkBalancer(cc resolver.ClientConn) error {
	c := new(balancerProbe)
	s := stateOf(new(resolve.Set), b.settings)
	s.Attributes = s.Attributes.WithValue(balancerProbeKey{}, c)
	if err := cc.UpdateState(s); err == nil || c.reached.Load() {
		return nil
	}
	err := fmt.Errorf("grpclayer: the client has a service config without our balancer: "+
		"give it to grpclayer.WithServiceConfig and not to grpc.WithDefaultServiceConfig, "+
		"or add \"loadBalancingConfig\": [{%q: {}}]", b.scheme)
	// Our balancer reports the error to calls. The other one may not.
	_ = cc.UpdateState(resolver.State{
		ServiceConfig: cc.ParseServiceConfig(serviceConfig("", b.scheme)), Attributes: attributes.New(misconfiguredKey{}, err),
	})
	return err
}

// misconfigured fails all calls if s has the error of a service config. It reports
// whether it does.
func (t *towerBalancer) misconfigured(s resolver.State) bool {
	err, ok := s.Attributes.Value(misconfiguredKey{}).(error)
	if ok {
		t.failsAll = true
		picker := base.NewErrPicker(status.Error(codes.Unavailable, err.Error()))
		t.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: picker})
	}
	return ok
}
