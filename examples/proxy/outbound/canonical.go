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

// logical is the router of a target that a request named.
func (o *Outbound) logical(ctx context.Context, target string) httplayer.Service {
	return o.router(ctx, target, o.profiles)
}

// router is the router of a target, and says on each request by which name that
// is served: l5d-dst-canonical, for the metrics of the endpoint's proxy.
type router struct {
	*profiles.Router[*http.Request, *http.Response]

	life   context.Context //nolint:containedctx // of what is kept up
	target string
	counts *meters.Routes
	named  atomic.Pointer[named]
}

// named is the name that one profile gives to the target.
type named struct {
	profile *profiles.Profile
	svc     httplayer.Service
	inForce context.Context //nolint:containedctx // ends when another profile takes its place
	over    func()
}

// Call looks the name up once for each profile. Whoever comes before the first
// one waits for it here.
func (r *router) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	n := r.named.Load()
	if n == nil {
		if _, err := r.Dispatch(ctx); err != nil {
			return nil, err
		}
	}
	if p := r.Profile(); n == nil || n.profile != p {
		n = r.rename(n, p)
	}
	return n.svc.Call(ctx, req)
}

// rename puts the name by p in the place of old. Another may have been quicker.
func (r *router) rename(old *named, p *profiles.Profile) *named {
	n := &named{profile: p, svc: r.Router}
	if name := canonicalOf(p, r.target); name != "" {
		n.svc = httplayer.Canonical(name)(r.Router)
	}
	n.inForce, n.over = context.WithCancel(r.life)
	if !r.named.CompareAndSwap(old, n) {
		n.over()
		return r.named.Load()
	}
	if old != nil {
		old.over()
	}
	return n
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
