package outbound

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// canonicalHeader contains the target's name in its profile. The endpoint's proxy counts requests
// by this name.
const canonicalHeader = "L5d-Dst-Canonical"

// router is the service for requests to one target. It sets l5d-dst-canonical to the result of
// [canonicalName], unless that is empty. It changes the received request itself. That is safe,
// because outer layers do not send it again.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	source *profileSource
}

// Call waits for the target's first profile. Then it sends req along the matching route.
func (r *router) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	d, ok := r.Profile().Value.(*profileValue)
	// The first profile may not have arrived. Dispatch waits for it.
	if !ok {
		if _, err := r.Dispatch(ctx); err != nil {
			return nil, err
		}
		d = r.source.of(r.Profile().Value)
	}
	if d.canonical != nil {
		// The slice is shared by all requests of this profile, which saves an allocation.
		req.Header[canonicalHeader] = d.canonical
	}
	return r.Router.Call(ctx, req)
}

// counts returns the meters of the current profile.
func (r *router) counts() *meters.Routes { return r.source.of(r.Profile().Value).Routes }

// canonicalName returns target's name in p, which by default is target itself. Addresses have no
// name, and neither have targets for which p specifies an endpoint. The name is then "".
func canonicalName(p *profiles.Profile, target string) string {
	// Where requests go decides under which name the target is known.
	switch d := p.Dispatch(target); d.To {
	case profiles.ToApex, profiles.ToRoutes:
		target = d.Authority
	case profiles.ToEndpoint:
		return ""
	// Without a profile, the name is the target itself.
	case profiles.ToTarget:
	}
	if _, err := netip.ParseAddrPort(target); err == nil {
		return ""
	}
	return target
}

// Next returns the Router that applies the profile.
func (r *router) Next() httplayer.Service { return r.Router }

// Describe shows the target's canonical name.
func (r *router) Describe() layer.Node {
	return layer.Node{Name: "canonical", State: layer.State{{Key: "name", Value: r.source.of(r.Profile().Value).name}}}
}

// backend returns the service for b, the backend of a profile or policy, and counts its requests. If b specifies
// an endpoint, that needs no balancer. ctx ends when no profile contains b.
func (s *profileSource) backend(ctx context.Context, b *profiles.Backend) httplayer.Service {
	d := s.of(b.Value)
	if b.Endpoint != nil {
		return d.Backend(b, pin(ctx, s.out.forwards, forwardTarget{s.target, b.Endpoint}))
	}
	return d.Backend(b, pin(ctx, s.out.concretes, s.balanced.get(backendKey{b.Authority, d.Parent(), b.Balancing})))
}

// pin returns the service for key in cache. After the service's first request, it stays in the cache until ctx ends.
// Otherwise the cache would drop the endpoints and connections of a client that sends requests only rarely.
func pin[K comparable](ctx context.Context, cache *layer.Cache[K, *http.Request, *http.Response], key K) httplayer.Service {
	return &pinned[K]{Service: cache.Service(key), ctx: ctx, cache: cache, key: key}
}

// pinned passes requests to a cached service, and keeps it in the cache from the first request on.
type pinned[K comparable] struct {
	httplayer.Service

	ctx   context.Context //nolint:containedctx // releases the service when it ends
	cache *layer.Cache[K, *http.Request, *http.Response]
	key   K
	held  atomic.Bool // the service is kept in the cache
}

// Call keeps the service in the cache, and then passes the request on.
func (k *pinned[K]) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if !k.held.Load() && k.held.CompareAndSwap(false, true) {
		// Call returns the same error. A later request tries again.
		if k.cache.Pin(k.ctx, k.key) != nil {
			k.held.Store(false)
		}
	}
	return k.Service.Call(ctx, req)
}

func (k *pinned[K]) Describe() layer.Node { return layer.Describe(k.Service) }
