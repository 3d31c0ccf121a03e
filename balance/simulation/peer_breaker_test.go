package simulation

import (
	"slices"
	"time"

	"github.com/gotower/gotower/layer"
)

// service returns the service of a backend, with the breaker of the scenario.
func (sc *scenario) service(backend int) layer.Service[*request, response] {
	if sc.breaker == nil {
		return leaf(backend)
	}
	return layer.Breaker[*request, response](*sc.breaker, layer.WithCompletion(complete))(leaf(backend))
}

// guarded is a peer with the breaker of the scenario for each backend. The peer picks only backends
// with breakers that admit a request. If these are less than half, it picks any, as Envoy does below
// its panic threshold and the real balancer does with MinReady.
type guarded struct {
	limited
	live, ready []int
	services    []layer.Service[*request, response]
}

// limited is a policy with a fleet.
type limited interface {
	policy
	limit(ids []int)
}

func newGuarded(sc *scenario, p policy) policy {
	g := &guarded{limited: p.(limited)}
	for i := range sc.backends {
		g.services = append(g.services, sc.service(i))
	}
	return g
}

// inner returns the policy without breakers.
func inner(p policy) policy {
	if g, ok := p.(*guarded); ok {
		return g.limited
	}
	return p
}

func (g *guarded) set(live []int, now time.Duration) {
	g.live, g.ready = live, live
	g.limited.set(live, now)
}

func (g *guarded) send(r *request, now time.Duration) {
	ready := slices.DeleteFunc(slices.Clone(g.live), func(i int) bool { return layer.Poll(g.services[i]) != nil })
	if 2*len(ready) < len(g.live) {
		ready = g.live
	}
	if !slices.Equal(ready, g.ready) {
		g.ready = ready
		g.limit(ready)
	}
	g.limited.send(r, now)
	_, _ = g.services[r.to].Call(layer.PastBreakers(&r.ctx), r) // leaf returns no error
}
