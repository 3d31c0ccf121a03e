package httpclient

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/static"
)

// WithProfiles sends requests along the routes in the target's profile from source, for example
// package profiles/file or profiles/linkerd. When the profile changes, the next request follows it.
// The first requests wait for the profile, for at most 3 s after [New].
//
// A request that matches a route gets that route's timeouts and retries, in place of [WithRetry] and
// [WithHedge]; a route without a timeout uses [WithTimeout]. All other requests are sent as without
// the option. [WithLogger] logs invalid parts of a profile, and outages of the source.
//
// The requests go to the split's targets, or to the route's backends. Each of them gets its own
// balancer and queue, with the Client's options, and the names are resolved like the target. A backend
// without requests for ten minutes is released until it gets another one. A nil source panics.
func WithProfiles(source profiles.Source) Option {
	if source == nil {
		panic("httpclient: WithProfiles: nil source")
	}
	return func(o *options) { o.profiles = source }
}

const (
	profileWait  = 3 * time.Second // longest wait for the first profile, as in linkerd's proxy
	idleBackends = 10 * time.Minute
)

// routed sends requests along a profile's routes. It makes a backend when a request needs it first.
type routed struct {
	httplayer.Service // the Router

	client  *Client
	options options
	cache   *layer.Cache[backendKey, *http.Request, *http.Response]

	mu       sync.Mutex
	policy   balance.Policy
	backends map[*backend]backendKey // those that exist
}

// backendKey identifies a backend. A change of the profile that changes the key makes a new backend.
type backendKey struct {
	name      string
	endpoint  *resolve.Endpoint // the only endpoint; nil means that name is resolved
	balancing profiles.Balancing
}

// String returns the backend's name.
func (k backendKey) String() string { return k.name }

// routed returns the service that sends requests to target along its routes.
func (o *options) routed(ctx context.Context, c *Client, target string) *routed {
	r := &routed{client: c, options: *o, policy: o.policy, backends: make(map[*backend]backendKey)}
	r.cache = layer.NewCache(ctx, r.makeBackend, layer.CachePolicy{IdleTimeout: idleBackends},
		layer.WithTarget[*http.Response](target), layer.WithCompletion(httplayer.Completion))
	// Without a matching route, a request gets the Client's retries and timeout. A route has its own retries.
	attempts := o.attemptLayers(o.stack(target))
	timeout := o.stack(target).ResponseHeaderTimeout(o.timeout)
	r.Service = profiles.New(ctx, profiles.Config{
		Target: target, Source: o.profiles, InitialWait: profileWait, Log: o.log,
	}, httplayer.HTTP{}, func(name string) httplayer.Service { return r.cache.Service(backendKey{name: name}) },
		profiles.WithRouteLayers(httplayer.HTTP{}),
		profiles.WithDefaultRoute(func(_ *profiles.Profile, next httplayer.Service) httplayer.Service {
			return attempts.Service(next)
		}),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			// The route's own timeout applies instead.
			if route.Timeout > 0 || route.RequestTimeout > 0 {
				return next
			}
			return timeout.Service(next)
		}),
		profiles.WithBackends(func(_ context.Context, b *profiles.Backend) httplayer.Service {
			k := backendKey{name: b.Authority, endpoint: b.Endpoint, balancing: b.Balancing}
			if b.Endpoint != nil {
				k.name = b.Endpoint.Addr.String()
			}
			return r.cache.Service(k)
		}))
	return r
}

// makeBackend makes the service of k, with the Client's options and the values of the profile. It ends
// with ctx. The cache calls it once for each k in use.
func (r *routed) makeBackend(ctx context.Context, k backendKey) httplayer.Service {
	o, name := r.options, k.name
	switch {
	case k.endpoint != nil:
		o.resolver = static.New(map[string][]resolve.Endpoint{name: {*k.endpoint}})
	case o.resolver == nil:
		var err error
		if name, err = o.resolve(name); err != nil {
			return unsupported{&layer.Error{Layer: "backend", Target: k.name, Reason: "the name cannot be resolved", Err: err}}
		}
	}
	b := k.balancing
	if b.QueueCapacity > 0 || b.QueueTimeout > 0 {
		// A value of 0 in the profile leaves the Client's own.
		q := cmp.Or(o.queue, &queue{queueCapacity, queueMaxWait})
		o.queue = &queue{cmp.Or(b.QueueCapacity, q.capacity), cmp.Or(b.QueueTimeout, q.maxWait, queueMaxWait)}
	}
	if b.Breaker != (layer.BreakerPolicy{}) {
		o.breaker = &b.Breaker
	}
	// With the lock from here on, setPolicy cannot miss the new backend.
	r.mu.Lock()
	defer r.mu.Unlock()
	o.policy = k.policy(r.policy)
	created := o.backend(ctx, r.client, o.resolver, name)
	r.backends[created] = k
	context.AfterFunc(ctx, func() { r.release(created, name) })
	return routedBackend{created}
}

// policy returns p with the values of the profile, which take precedence over WithPolicy.
func (k backendKey) policy(p balance.Policy) balance.Policy {
	if k.balancing.Decay > 0 {
		p.Decay = max(k.balancing.Decay, time.Millisecond)
	}
	p.Penalty = cmp.Or(k.balancing.Penalty, p.Penalty)
	return p
}

// release removes the backend b with the given name after its end, and the metrics for that name.
func (r *routed) release(b *backend, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.backends, b)
	// The target's own metrics are used by the Client itself.
	if m, ok := r.options.metrics.(forgetter); ok && name != r.client.target {
		m.Forget(name)
	}
}

// setPolicy sets the balancing policy of all backends, and of those that are made later. It returns
// an error, and changes nothing, for an invalid policy.
func (r *routed) setPolicy(p balance.Policy) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := p.Validate(); err != nil {
		return err
	}
	// Backends that are made later get the new policy, too.
	r.policy = p
	for b, k := range r.backends {
		if err := b.balancer.SetPolicy(k.policy(p)); err != nil {
			return err
		}
	}
	return nil
}

// endpoints returns the state of every endpoint of every backend, sorted by address. An endpoint of
// two backends is listed twice.
func (r *routed) endpoints() (all []balance.EndpointState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for b := range r.backends {
		all = append(all, b.balancer.Snapshot()...)
	}
	slices.SortFunc(all, func(a, b balance.EndpointState) int { return a.ID.Addr.Compare(b.ID.Addr) })
	return all
}

// routedBackend is a backend below a Router. It is ready while it has a ready endpoint, so that a
// split can avoid it.
type routedBackend struct{ *backend }

// Ready waits until the backend has a ready endpoint.
func (b routedBackend) Ready(ctx context.Context) error { return b.balancer.WaitReady(ctx) }

// Call sends req to an endpoint of the backend, after the first answer of the resolver.
func (b routedBackend) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	b.awaitResolved(ctx)
	return b.Service.Call(ctx, req)
}

// Next returns the backend's own service with its layers, so that [layer.Describe] can follow the
// chain.
func (b routedBackend) Next() httplayer.Service { return b.Service }

// Describe returns the name of this layer for [layer.Describe], without any state.
func (b routedBackend) Describe() layer.Node { return layer.Node{Name: "backend"} }
