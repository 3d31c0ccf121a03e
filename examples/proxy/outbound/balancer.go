package outbound

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/internal/setting"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// queueOf returns the capacity and maximum wait of the queue in front of a balancer. q provides the
// defaults for b.
func queueOf(b profiles.Balancing, q settings.Queue) (capacity int, maxWait time.Duration) {
	q.Capacity = cmp.Or(b.QueueCapacity, q.Capacity)
	q.FailFast = cmp.Or(b.QueueTimeout, q.FailFast)
	return q.Capacity, q.MaxWait()
}

// policyOf converts b for package balance, which requires a decay of at least 1 ms. With a circuit
// breaker, at least one endpoint always stays in use. Linkerd's proxy has no such minimum.
func policyOf(b profiles.Balancing) balance.Policy {
	p := balance.Policy{Decay: b.Decay, Penalty: b.Penalty}
	// 0 is package balance's default and stays.
	if p.Decay != 0 {
		p.Decay = max(p.Decay, time.Millisecond)
	}
	if hasBreaker(b) {
		p.OutlierDetection.MinReady = oneEndpoint
	}
	return p
}

// oneEndpoint is the share of endpoints that a balancer must keep ready. It is rounded up, so it
// means one endpoint in a balancer with up to a million.
const oneEndpoint = 1e-6

// hasBreaker reports whether b specifies a circuit breaker.
func hasBreaker(b profiles.Balancing) bool { return b.Breaker != layer.BreakerPolicy{} }

// classify classifies responses for b's balancer. With a circuit breaker and a Penalty of 0, which is by
// how much failures make an endpoint more expensive for the balancer, all responses count as successes,
// and only errors without a response use [httplayer.Classify].
// Linkerd's proxy does the same. Failed responses are left to the circuit breaker, because a
// balancer that counted them too would avoid the endpoint too early, and for up to a minute after
// its recovery.
func (b *backend) classify(o layer.Outcome[*http.Response]) layer.Class {
	// An error means that there was no response to judge by its status.
	if o.Err == nil {
		if current := b.balancing.Get(); hasBreaker(current) && current.Penalty == 0 {
			return layer.Success
		}
	}
	return httplayer.Classify(o)
}

// withBreaker wraps mk, which makes the service for an endpoint. It adds b's circuit breaker, if
// there is one.
func (b *backend) withBreaker(
	mk discover.MakeService[*http.Request, *http.Response],
) discover.MakeService[*http.Request, *http.Response] {
	// The layer is built again whenever the settings change, and the endpoint inside it is kept.
	return func(ctx context.Context, t discover.Target) httplayer.Service {
		return setting.Layer(b.balancing, func(current profiles.Balancing) httplayer.Layer {
			// No layer is added without a breaker.
			if !hasBreaker(current) {
				return nil
			}
			return httplayer.NewStack().WithTarget(t.Name).Breaker(current.Breaker).Layer()
		})(mk(ctx, t))
	}
}

// follow applies b's settings to its balancer, now and whenever they change, until ctx ends.
func (b *backend) follow(ctx context.Context, balancer interface{ SetPolicy(p balance.Policy) error }, log *slog.Logger) {
	// Follow calls the function now, and again after each change.
	b.balancing.Follow(ctx, func(current profiles.Balancing) {
		if err := balancer.SetPolicy(policyOf(current)); err != nil {
			log.Warn("the policy of a balancer was not changed", "target", b.authority, "err", err)
		}
	})
}

// queued returns svc behind b's queue and the layers in st. q provides the queue's defaults.
func queued[Req, Rsp any](
	b *backend, q settings.Queue, st layer.Stack[Req, Rsp], svc layer.Service[Req, Rsp],
) layer.Service[Req, Rsp] {
	// The queue is built again whenever the settings change.
	return setting.Layer(b.balancing, func(current profiles.Balancing) layer.Layer[Req, Rsp] {
		return st.Queue(queueOf(current, q)).Layer()
	})(svc)
}
