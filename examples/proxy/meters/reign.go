package meters

import (
	"context"

	"github.com/gotower/gotower/profiles"
)

// reign is the time of one profile. What backends count is bound for it, so that
// nothing is left of those that a profile has no more.
type reign struct {
	*term
	over context.CancelFunc
	dst  string

	routes, backends map[string]bool // by name, and by authority; nil: there is no profile yet
}

// newReign is that of p, or of the time before the first profile.
func (r *Routes) newReign(p *profiles.Profile) *reign {
	ctx, over := context.WithCancel(r.ctx)
	n := &reign{term: r.meters.term(ctx), over: over, dst: r.dst}
	if p == nil {
		return n
	}
	n.routes, n.backends = map[string]bool{"": true}, map[string]bool{}
	for _, t := range p.Targets {
		if t.Weight > 0 && t.Validate() == nil {
			n.backends[t.Authority] = true
		}
	}
	if len(n.backends) == 0 {
		n.backends[r.dst] = true
	}
	if p.Endpoint != nil {
		n.backends[p.Endpoint.String()] = true
	}
	for _, route := range p.Routes {
		n.routes[route.Name] = true
		for _, m := range route.Mirrors {
			n.backends[m.Authority] = true
		}
	}
	return n
}

// has reports whether the profile has a route and a backend. A request that began
// by the profile before may still come by others.
func (r *reign) has(route, authority string) bool {
	return r.routes == nil || r.routes[route] && r.backends[authority]
}
