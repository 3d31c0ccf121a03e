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

// canonicalHeader is the header that contains the name of the target in its profile. The
// proxy of the endpoint counts requests by this name.
const canonicalHeader = "L5d-Dst-Canonical"

// router is the service of the requests to one target. It sets the header l5d-dst-canonical
// to the result of [canonicalName], unless that is "". It sets the header in the received
// request. A copy is not necessary, because outer layers do not send this request again.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	ctx    context.Context //nolint:containedctx // when it ends, pinned services are released
	target string
	counts *meters.Routes
	state  atomic.Pointer[routerState]
}

// routerState is the part of a router that depends on the profile. A new profile replaces
// it.
type routerState struct {
	profile   *profiles.Profile
	canonical []string        // value of the header; nil if the target has no name
	active    context.Context //nolint:containedctx // ends when the next profile takes effect
	end       context.CancelFunc
}

// Call waits for the first profile of the target. It then sets the header l5d-dst-canonical
// and sends req by the route that matches it.
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

// replace replaces the state old by a new state for the profile p, and returns the new
// state. If a concurrent call has replaced old already, replace returns the state of that
// call.
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

// canonicalName returns the name that the profile p gives target, or target itself if p
// gives no name. It returns "" if the result would be an address, or if p specifies an
// endpoint.
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

// Next returns the embedded Router, the service that applies the profile.
func (r *router) Next() httplayer.Service { return r.Router }

// Describe shows the canonical name of the target.
func (r *router) Describe() layer.Node {
	return layer.Node{Name: "canonical", State: layer.State{{Key: "name", Value: canonicalName(r.Profile(), r.target)}}}
}

// metrics returns the options that count requests by route.
func (r *router) metrics() profiles.Option[*http.Request, *http.Response] {
	return profiles.Join(
		profiles.WithOnUpdate[*http.Request, *http.Response](func(p *profiles.Profile) {
			r.counts.OnProfile(cmp.Or(canonicalName(p, r.target), r.target), p)
		}),
		profiles.WithMetrics[*http.Request, *http.Response](r.counts.Measured),
		profiles.WithPerRoute(r.counts.PerRoute),
		profiles.WithDefaultRoute(r.counts.Unrouted))
}

// backends returns a function that makes the service of one target of the split. The
// service counts the requests, and sends them to a balancer, which the argument makes.
func (r *router) backends(
	to layer.MakeService[balancerKey, *http.Request, *http.Response],
) layer.MakeService[string, *http.Request, *http.Response] {
	return func(authority string) httplayer.Service {
		return r.counts.Backend(authority, to(balancerKey{authority: authority, parent: r.counts.Parent()}))
	}
}

// forwards returns a function that makes the service of the endpoint that the profile
// specifies. The service counts the requests and passes them to an inner service, which the
// argument makes.
func (r *router) forwards(
	to layer.MakeService[forwardTarget, *http.Request, *http.Response],
) layer.MakeService[*profiles.Endpoint, *http.Request, *http.Response] {
	return func(e *profiles.Endpoint) httplayer.Service {
		return r.counts.Backend(e.String(), to(forwardTarget{r.target, e}))
	}
}

// pin returns a function that looks up the service of a key in a cache (the argument in).
// After its first request, the service stays in the cache until r receives another
// profile. Without this, the cache would close the endpoints and connections of a client
// that rarely sends requests.
func pin[K comparable](r *router, in *layer.Cache[K, *http.Request, *http.Response]) layer.MakeService[K, *http.Request, *http.Response] {
	return func(key K) httplayer.Service {
		return &pinned[K]{Service: in.Service(key), router: r, in: in, key: key}
	}
}

// pinned passes requests to a service of a cache, the embedded Service. It keeps this
// service in the cache from the first request until the router receives another profile.
type pinned[K comparable] struct {
	httplayer.Service

	router *router
	in     *layer.Cache[K, *http.Request, *http.Response]
	key    K
	by     atomic.Pointer[routerState] // the router state with the profile that keeps the service
}

func (k *pinned[K]) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	old, now := k.by.Load(), k.router.state.Load()
	if old != now && now != nil && k.by.CompareAndSwap(old, now) {
		_ = k.in.Pin(now.active, k.key) // an error is also the error of Call
	}
	return k.Service.Call(ctx, req)
}

func (k *pinned[K]) Describe() layer.Node { return layer.Describe(k.Service) }
