package httpclient

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/resolve"
)

// backend is the service for one name: its endpoints, with a balancer and a queue. A Client has one, or
// several with WithProfiles.
type backend struct {
	httplayer.Service // queue, limit and balancer

	balancer    *balance.Balancer[*http.Request, *http.Response]
	resolveWait time.Duration // how long requests wait for the first answer of the resolver; 0 means no limit
	resolved    atomic.Bool   // whether there was an answer
}

// backend returns the backend for target, which resolver resolves. It starts to resolve at once. The
// options determine the policies of its balancer and its queue.
func (o *options) backend(ctx context.Context, c *Client, resolver resolve.Resolver, target string) *backend {
	balancing := balance.Config{Target: target, Policy: o.policy, FailFast: !o.waitForReady}
	if o.metrics != nil {
		balancing.Metrics = o.metrics.Balance(target)
	}
	if o.events != nil {
		balancing.OnEvent = o.observeEndpoints()
	}
	reachable := &families{dialers: make(map[*dialer]struct{})}
	// The balancer calls mk for each endpoint that the resolver finds.
	mk := discover.MakeService[*http.Request, *http.Response](func(ctx context.Context, t discover.Target) httplayer.Service {
		return o.endpoint(ctx, t, c, reachable)
	})
	// A check runs on the bare endpoint, so that limits and breakers above it do not affect the result.
	if o.healthCheck != nil {
		mk = discover.WithHealthCheck(mk, o.healthCheck, o.healthPolicy)
	}
	b := &backend{resolveWait: o.resolveWait}
	b.balancer = balance.Resolve(ctx, resolver, balancing, o.endpointLayers(mk), balance.WithCompletion(httplayer.Completion))
	// The queue is above the limit and the balancer, so that a request waits until both admit it.
	b.Service = o.queueLayers(o.stack(target)).Service(b.balancer)
	return b
}

// stack returns an empty stack, with the metrics of target and further options.
func (o *options) stack(target string, further ...httplayer.Option) httplayer.Stack {
	s := httplayer.NewStack(further...).WithTarget(target)
	if o.metrics != nil {
		s = s.WithMetrics(o.metrics.Layer(target))
	}
	return s
}

// awaitResolved waits for the resolver's first answer, because there is nothing to queue for before it.
// If there is none in time, the request fails in the stack, which tells the reason.
func (b *backend) awaitResolved(ctx context.Context) {
	if b.resolved.Load() {
		return
	}
	if b.resolveWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.resolveWait)
		defer cancel()
	}
	// Resolved returns an error also if the target cannot be resolved. The stack's error is then the
	// better one.
	if b.balancer.Resolved(ctx) == nil {
		b.resolved.Store(true)
	}
}

// queueLayers adds the layers in which a request waits: the queue, and the limit of all requests in
// flight.
func (o *options) queueLayers(stack httplayer.Stack) httplayer.Stack {
	switch {
	case o.queue == nil:
		stack = stack.Queue(queueCapacity, queueMaxWait)
	case o.queue.capacity > 0:
		stack = stack.Queue(o.queue.capacity, o.queue.maxWait)
	}
	if o.limit > 0 {
		stack = stack.Limit(o.limit)
	}
	return stack
}
