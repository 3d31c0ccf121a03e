package outbound

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/resolve"
)

// canonicalHeader contains the target's name in its profile. The endpoint's proxy counts requests
// by this name.
const canonicalHeader = "L5d-Dst-Canonical"

// router is the service for requests to one target. It sets l5d-dst-canonical to the result of
// [canonicalName], unless that is empty. It changes the received request itself. That is safe,
// because outer layers do not send it again.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	ctx      context.Context //nolint:containedctx // releases pinned services when it ends
	target   string
	counts   *meters.Routes
	balanced *backends
	latest   *profiles.Profile // from the last onUpdate
	state    atomic.Pointer[routerState]
}

// routerState is the part of a router that each new profile replaces.
type routerState struct {
	profile   *profiles.Profile
	canonical []string        // l5d-dst-canonical; nil if the target has no name
	active    context.Context //nolint:containedctx // ends when the next profile takes effect
	end       context.CancelFunc
}

// Call waits for the target's first profile. Then it sends req along the matching route.
func (r *router) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	s := r.state.Load()
	// Without a state, the first profile may not have arrived. Dispatch waits for it.
	if s == nil {
		if _, err := r.Dispatch(ctx); err != nil {
			return nil, err
		}
	}
	// The profile has changed since the state was made.
	if p := r.Profile(); s == nil || s.profile != p {
		s = r.replace(s, p)
	}
	if s.canonical != nil {
		// The slice is shared by all requests of this profile, which saves an allocation.
		req.Header[canonicalHeader] = s.canonical
	}
	return r.Router.Call(ctx, req)
}

// replace replaces old by a new state for p, and returns the current state. That is the one of a
// concurrent call if that call was faster.
func (r *router) replace(old *routerState, p *profiles.Profile) *routerState {
	s := &routerState{profile: p}
	if name := canonicalName(p, r.target); name != "" {
		s.canonical = []string{name}
	}
	s.active, s.end = context.WithCancel(r.ctx)
	// A concurrent call has already stored its state. Drop this one.
	if !r.state.CompareAndSwap(old, s) {
		s.end()
		return r.state.Load()
	}
	if old != nil {
		// Ending the old state releases the services that it pinned in caches.
		old.end()
	}
	return s
}

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
	return layer.Node{Name: "canonical", State: layer.State{{Key: "name", Value: canonicalName(r.Profile(), r.target)}}}
}

// onUpdate prepares for p. The embedded Router calls it before it makes p's services.
func (r *router) onUpdate(p *profiles.Profile) {
	// With the same parent, backends whose settings changed keep their balancers. Labels change before, so that new
	// services count with the new ones.
	previous := r.counts.Parent()
	r.counts.OnProfile(cmp.Or(canonicalName(p, r.target), r.target), p)
	if r.counts.Parent() == previous {
		r.balanced.update(previous, r.latest, p)
	}
	r.latest = p
}

// backends returns a function that makes the service for one target of the split, with balance, and
// counts its requests.
func (r *router) backends(
	balance layer.MakeService[*backend, *http.Request, *http.Response],
) layer.MakeService[string, *http.Request, *http.Response] {
	return func(authority string) httplayer.Service {
		return r.counts.Backend(authority, balance(r.balanced.get(backendKey{authority: authority, parent: r.counts.Parent()})))
	}
}

// forwards returns a function that makes the service for the endpoint that the profile specifies,
// with forward, and counts its requests.
func (r *router) forwards(
	forward layer.MakeService[forwardTarget, *http.Request, *http.Response],
) layer.MakeService[*resolve.Endpoint, *http.Request, *http.Response] {
	return func(e *resolve.Endpoint) httplayer.Service {
		return r.counts.Backend(e.Addr.String(), forward(forwardTarget{r.target, e}))
	}
}

// pin returns a function that makes services from cache. After a service's first request, it stays
// in the cache until r receives another profile. Otherwise the cache would drop the endpoints and
// connections of a client that sends requests only rarely.
func pin[K comparable](
	r *router, cache *layer.Cache[K, *http.Request, *http.Response],
) layer.MakeService[K, *http.Request, *http.Response] {
	return func(key K) httplayer.Service {
		return &pinned[K]{Service: cache.Service(key), router: r, cache: cache, key: key}
	}
}

// pinned passes requests to a cached service, and keeps it in the cache from the first request
// until the router receives another profile.
type pinned[K comparable] struct {
	httplayer.Service

	router *router
	cache  *layer.Cache[K, *http.Request, *http.Response]
	key    K
	holder atomic.Pointer[routerState] // the state whose profile keeps the service; nil at first
}

// Call keeps the service in the cache once for each profile of the router, and then passes the request on.
func (k *pinned[K]) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	old := k.holder.Load()
	current := k.router.state.Load()
	if old != current && current != nil && k.holder.CompareAndSwap(old, current) {
		_ = k.cache.Pin(current.active, k.key) // Call returns the same error
	}
	return k.Service.Call(ctx, req)
}

func (k *pinned[K]) Describe() layer.Node { return layer.Describe(k.Service) }
