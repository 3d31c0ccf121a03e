package outbound

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// balancerKey is the key of a balancer in a cache. It consists of the target, the parent
// resource of the profile, and the configuration that a policy has for the balancer.
// Routes with equal keys share a balancer. As in linkerd's proxy, the same target has a
// separate balancer for each parent.
type balancerKey struct {
	authority string
	parent    meters.Parent
	profiles.Balancing
}

// balancerOf returns the key of the balancer for the backend b. b.Endpoint must be nil,
// because a backend with an endpoint needs no balancer.
func balancerOf(b *profiles.Backend, parent meters.Parent) balancerKey {
	return balancerKey{b.Authority, parent, b.Balancing}
}

// String returns the authority of the target, which is host:port.
func (b balancerKey) String() string { return b.authority }

// queue returns the capacity and the maximum wait of the queue in front of the balancer.
// q has the defaults for values that the policy does not set.
func (b balancerKey) queue(q settings.Queue) (capacity int, maxWait time.Duration) {
	q.Capacity, q.FailFast = cmp.Or(b.QueueCapacity, q.Capacity), cmp.Or(b.QueueTimeout, q.FailFast)
	return q.Capacity, q.MaxWait()
}

// policy returns the configuration for package balance. A decay of less than 1 ms becomes
// 1 ms. If the policy has a circuit breaker, at least one endpoint stays in use.
// Linkerd's proxy has no such minimum.
func (b balancerKey) policy() balance.Policy {
	p := balance.Policy{Decay: b.Decay, Penalty: b.Penalty}
	if p.Decay != 0 {
		p.Decay = max(p.Decay, time.Millisecond)
	}
	if b.hasBreaker() {
		p.OutlierDetection.MinReady = oneEndpoint
	}
	return p
}

// oneEndpoint is the share of its endpoints that a balancer must keep ready. The balancer
// rounds the resulting number of endpoints up. The number is 1 for a balancer with at most
// a million endpoints.
const oneEndpoint = 1e-6

// hasBreaker reports whether the policy has a circuit breaker.
func (b balancerKey) hasBreaker() bool { return b.Breaker != layer.BreakerPolicy{} }

// classifier returns the function by which the balancer classifies responses. It is
// [httplayer.Classify] if the policy has a penalty, or has no circuit breaker. Otherwise
// every response is a success, as in linkerd's proxy, and [httplayer.Classify] is used only
// for errors without a response. Only the circuit breaker then counts failed responses. The
// balancer does not, because it would avoid the endpoint too early, and for up to a minute
// after its recovery.
func (b balancerKey) classifier() layer.Classifier[*http.Response] {
	if !b.hasBreaker() || b.Penalty != 0 {
		return httplayer.Classify
	}
	return func(o layer.Outcome[*http.Response]) layer.Class {
		if o.Err == nil {
			return layer.Success
		}
		return httplayer.Classify(o)
	}
}

// withBreaker returns a function that makes the service of an endpoint. That function calls
// the argument mk, and adds the circuit breaker of the policy to the service. If the policy
// has no circuit breaker, withBreaker returns mk itself.
func (b balancerKey) withBreaker(
	mk discover.MakeService[*http.Request, *http.Response],
) discover.MakeService[*http.Request, *http.Response] {
	if !b.hasBreaker() {
		return mk
	}
	return func(ctx context.Context, t discover.Target) httplayer.Service {
		return httplayer.NewStack(layer.WithTarget[*http.Response](t.Name)).Breaker(b.Breaker).Service(mk(ctx, t))
	}
}

// policyBackends returns a function that makes the service of a backend of a policy. The
// service counts the requests and passes them to an inner service. If the backend specifies
// an endpoint, the argument forward makes the inner service. Otherwise the inner service is
// a balancer, which the first argument makes.
func (r *router) policyBackends(
	to layer.MakeService[balancerKey, *http.Request, *http.Response],
	forward layer.MakeService[forwardTarget, *http.Request, *http.Response],
) layer.MakeService[*profiles.Backend, *http.Request, *http.Response] {
	return func(b *profiles.Backend) httplayer.Service {
		if b.Endpoint != nil {
			return r.counts.PolicyBackend(b, forward(forwardTarget{r.target, b.Endpoint}))
		}
		return r.counts.PolicyBackend(b, to(balancerOf(b, r.counts.Parent())))
	}
}
