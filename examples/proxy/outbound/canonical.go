package outbound

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// logical is the router of a target that a request named.
func (o *Outbound) logical(ctx context.Context, target string) httplayer.Service {
	return o.router(ctx, target)
}

// router is the router of a target, and says on each request by which name that
// is served: l5d-dst-canonical, for the metrics of the endpoint's proxy.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	target string
	named  atomic.Pointer[named]
}

// named is the name that one profile gives to the target.
type named struct {
	profile *profiles.Profile
	svc     httplayer.Service
}

func (o *Outbound) canonical(target string, r *profiles.Router[*http.Request, *http.Response]) *router {
	return &router{Router: r, target: target}
}

// Call looks the name up once for each profile. A first request that has to
// wait for the profile goes without: the name is not needed on every one.
func (r *router) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	n, p := r.named.Load(), r.Profile()
	if n == nil || n.profile != p {
		n = &named{p, r.Router}
		if name := canonicalOf(p, r.target); name != "" {
			n.svc = httplayer.Canonical(name)(r.Router)
		}
		r.named.Store(n)
	}
	return n.svc.Call(ctx, req)
}

// canonicalOf is the name of target, or "" if it is an address that p has no
// name for.
func canonicalOf(p *profiles.Profile, target string) string {
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

// Next returns the router by the profile.
func (r *router) Next() httplayer.Service { return r.Router }

// Describe shows by which name the target is served.
func (r *router) Describe() layer.Node {
	return layer.Node{Name: "canonical", State: layer.State{{Key: "name", Value: canonicalOf(r.Profile(), r.target)}}}
}
