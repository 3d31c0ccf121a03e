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
)

// canonicalHeader is the header by which the endpoint's proxy counts requests.
const canonicalHeader = "L5d-Dst-Canonical"

// router is the router of a target. It sets l5d-dst-canonical to the name of the target
// in its profile. It changes the received request instead of a copy, because no layer
// above sends that elsewhere.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	ctx    context.Context //nolint:containedctx // of the pinned services
	target string
	counts *meters.Routes
	state  atomic.Pointer[routerState]
}

// routerState is the state of a router for one profile.
type routerState struct {
	profile   *profiles.Profile
	canonical []string        // the header; nil if the target has no name
	active    context.Context //nolint:containedctx // ends when the next profile takes effect
	end       context.CancelFunc
}

// Call waits for the first profile. It then sends req by the route that matches it.
func (r *router) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	s := r.state.Load()
	if s == nil {
		if _, err := r.Dispatch(ctx); err != nil {
			return nil, err
		}
	}
	if p := r.Profile(); s == nil || s.profile != p {
		s = r.replace(s, p)
	}
	if s.canonical != nil {
		req.Header[canonicalHeader] = s.canonical
	}
	return r.Router.Call(ctx, req)
}

// replace replaces old by the state of p. It returns the state that a concurrent
// call has set, if there is one.
func (r *router) replace(old *routerState, p *profiles.Profile) *routerState {
	s := &routerState{profile: p}
	if name := canonicalName(p, r.target); name != "" {
		s.canonical = []string{name}
	}
	s.active, s.end = context.WithCancel(r.ctx)
	if !r.state.CompareAndSwap(old, s) {
		s.end()
		return r.state.Load()
	}
	if old != nil {
		old.end()
	}
	return s
}

// canonicalName returns the name of target in p, or "" for an address without a
// name.
func canonicalName(p *profiles.Profile, target string) string {
	switch d := p.Dispatch(target); d.To {
	case profiles.ToApex, profiles.ToRoutes:
		target = d.Authority
	case profiles.ToEndpoint:
		return ""
	case profiles.ToTarget:
	}
	if _, err := netip.ParseAddrPort(target); err == nil {
		return ""
	}
	return target
}

// Next returns the router of the profile.
func (r *router) Next() httplayer.Service { return r.Router }

// Describe shows the canonical name.
func (r *router) Describe() layer.Node {
	return layer.Node{Name: "canonical", State: layer.State{{Key: "name", Value: canonicalName(r.Profile(), r.target)}}}
}

// metrics returns the option that counts requests by route.
func (r *router) metrics() profiles.Option[*http.Request, *http.Response] {
	return profiles.Join(
		profiles.WithOnUpdate[*http.Request, *http.Response](func(p *profiles.Profile) {
			r.counts.OnProfile(cmp.Or(canonicalName(p, r.target), r.target), p)
		}),
		profiles.WithMetrics[*http.Request, *http.Response](r.counts.Measured),
		profiles.WithPerRoute(r.counts.PerRoute),
		profiles.WithDefaultRoute(r.counts.Unrouted))
}

// backends counts the requests to each target of the profile.
func (r *router) backends(
	to layer.MakeService[string, *http.Request, *http.Response],
) layer.MakeService[string, *http.Request, *http.Response] {
	return func(authority string) httplayer.Service { return r.counts.Backend(authority, to(authority)) }
}

// forwards counts the requests to the endpoint that the profile names.
func (r *router) forwards(
	to layer.MakeService[forwardTarget, *http.Request, *http.Response],
) layer.MakeService[*profiles.Endpoint, *http.Request, *http.Response] {
	return func(e *profiles.Endpoint) httplayer.Service {
		return r.counts.Backend(e.String(), to(forwardTarget{r.target, e}))
	}
}

// pin returns services of a cache that stay in the cache from their first request
// until r gets another profile. A client that keeps a connection open but sends
// rarely then finds its endpoints and connections ready.
func pin[K comparable](r *router, in *layer.Cache[K, *http.Request, *http.Response]) layer.MakeService[K, *http.Request, *http.Response] {
	return func(key K) httplayer.Service {
		return &pinned[K]{Service: in.Service(key), router: r, in: in, key: key}
	}
}

type pinned[K comparable] struct {
	httplayer.Service

	router *router
	in     *layer.Cache[K, *http.Request, *http.Response]
	key    K
	by     atomic.Pointer[routerState]
}

func (k *pinned[K]) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	old, now := k.by.Load(), k.router.state.Load()
	if old != now && now != nil && k.by.CompareAndSwap(old, now) {
		_ = k.in.Pin(now.active, k.key) // an error is also the error of Call
	}
	return k.Service.Call(ctx, req)
}

func (k *pinned[K]) Describe() layer.Node { return layer.Describe(k.Service) }
