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

// WithServiceConfig adds a service config of gRPC's, in JSON, to that of [DialOptions]:
//
//	grpclayer.WithServiceConfig(`{"methodConfig": [{
//		"name": [{"service": "shop.Books"}],
//		"retryPolicy": {
//			"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
//		}
//	}]}`)
//
// Our balancer is added where the config names none. One that is not valid makes
// [grpc.NewClient] fail. Only [DialOptions] looks at it; of several the last holds.
//
// gRPC's retries have no budget. Where [WithCallLayer] has a Retry too, the two multiply.
func WithServiceConfig(config string) Option {
	return option(func(s *settings) { s.config = config })
}

// serviceConfig returns the given service config with the named balancer unless
// it has one. An invalid config is returned unchanged, because gRPC reports the
// error.
func serviceConfig(given, balancer string) string {
	fields := make(map[string]json.RawMessage)
	if given != "" && json.Unmarshal([]byte(given), &fields) != nil {
		return given
	}
	if fields == nil { // the config is null, and an empty one to gRPC
		fields = make(map[string]json.RawMessage)
	}
	for field := range fields { // gRPC does not look at the case of names either
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

// claim is how our balancer tells our resolver that a state reached it.
type claim struct{ taken atomic.Bool }

// Equal is asked by package attributes.
func (c *claim) Equal(o any) bool { return c == o }

// claimKey is of a resolver.State: the resolver's *claim.
type claimKey struct{}

// misconfiguredKey is of a resolver.State: the error that all calls fail with.
type misconfiguredKey struct{}

// claimed returns an error if another balancer than ours takes the states of a
// client that has our [DialOptions]. It sends a state without endpoints: our balancer
// takes it without an error, while others ask for endpoints.
func (b *resolverBuilder) claimed(cc resolver.ClientConn) error {
	c := new(claim)
	s := stateOf(new(resolve.Set), b.settings)
	s.Attributes = s.Attributes.WithValue(claimKey{}, c)
	if err := cc.UpdateState(s); err == nil || c.taken.Load() {
		return nil
	}
	err := fmt.Errorf("grpclayer: the client has a service config without our balancer: "+
		"give it to grpclayer.WithServiceConfig and not to grpc.WithDefaultServiceConfig, "+
		"or add \"loadBalancingConfig\": [{%q: {}}]", b.scheme)
	// The other balancer may keep the error to itself. Ours does not.
	_ = cc.UpdateState(resolver.State{
		ServiceConfig: cc.ParseServiceConfig(serviceConfig("", b.scheme)), Attributes: attributes.New(misconfiguredKey{}, err),
	})
	return err
}

// misconfigured fails all calls, and reports whether it did, if s says that there is a
// wrong service config.
func (t *towerBalancer) misconfigured(s resolver.State) bool {
	err, ok := s.Attributes.Value(misconfiguredKey{}).(error)
	if ok {
		t.rejects = true
		picker := base.NewErrPicker(status.Error(codes.Unavailable, err.Error()))
		t.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: picker})
	}
	return ok
}
