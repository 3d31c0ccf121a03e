package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// Backend is a target of one route's requests.
type Backend struct {
	Target
	Endpoint  *resolve.Endpoint // the only endpoint of the backend, instead of Authority; may be nil
	Balancing Balancing
	// Labels are those of the backend's resource, for example "backend_name", for metrics and tap. If Labels
	// is not empty, the backend's layers see a [layer.Route] with the policy's labels, the route
	// and the backend.
	Labels map[string]string
	// Missing is the reason why all requests to the backend fail, for example that it does not exist. It is "" for a
	// backend that can be used.
	Missing string
	// Value is for the program that makes the profile, and gets it in the function of [WithBackends]. It must be
	// comparable, and is usually a pointer.
	Value any

	// The following fields mean the same as in a [Route], for requests to this backend.
	RequestHeader, ResponseHeader layer.HeaderMutation
	Redirect                      *Redirect
	Faults                        []Fault
}

// Balancing configures a backend's balancer. The function that is passed to [WithBackends] must apply
// it. A zero field means the balancer's default. If a profile changes the Balancing of a backend, the
// function is called again. It may keep the balancer and change its policy.
type Balancing struct {
	Decay         time.Duration // time constant of the moving average of latencies
	Penalty       time.Duration // latency that is recorded for a failure
	QueueCapacity int           // number of requests that may wait for an endpoint
	QueueTimeout  time.Duration // longest wait for an endpoint
	// circuit breaker of each endpoint; the zero policy means no circuit breaker
	Breaker layer.BreakerPolicy
}

// WithBackends sets the function mk, which makes the service for a backend of a [Route]. A profile's Targets
// are backends too, with the profile's Value, and so is its Endpoint if [Profile.Dispatch] returns
// [ToEndpoint]. Routes still apply to an endpoint, unlike in linkerd's proxy, because linkerd's controller
// sends no routes together with one.
//
// Backends with equal Authority, Endpoint, Missing, Balancing and Value share one service. ctx ends when a
// profile without such a backend has become current; mk must then release the service.
//
// Without this option, [New]'s mk makes the service for an Authority, and a Router ignores endpoints.
func WithBackends[Req, Rsp any](mk func(ctx context.Context, b *Backend) layer.Service[Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.backends = mk }
}

// routeSplit returns the split among route's backends. Without a list of Backends it returns nil, and the
// profile's split applies. parent holds the labels of the profile's Policy, for the request context. The
// caller must hold mu.
func (r *Router[Req, Rsp]) routeSplit(route *liveRoute[Req, Rsp], parent map[string]string, drop func(error)) *split[Req, Rsp] {
	backends := route.def.Backends
	if backends == nil {
		route.outer = route.info
		return nil
	}
	s := &split[Req, Rsp]{apex: r.target, distribution: route.def.Distribution}
	labels := slices.ContainsFunc(backends, func(b Backend) bool { return len(b.Labels) > 0 })
	if !labels {
		route.outer = route.info
	}
	for i := range backends {
		b := &backends[i]
		if b.Weight == 0 {
			continue
		}
		key := b.key()
		svc := r.backend(b, key, drop)
		if r.protocol != nil {
			svc = r.filtered(b, svc)
		}
		s.add(Target{Authority: b.label(), Weight: b.Weight}, svc, key)
		if labels {
			s.parts[len(s.parts)-1].route = cmp.Or(route.def.toBackend(b, parent), route.info)
		}
	}
	if len(s.parts) == 0 {
		s.add(Target{Authority: "none", Weight: 1}, failingBackend[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Kind: layer.ErrNotReady, Reason: "the route has no backends",
		}}, backendKey{})
	}
	return s
}

// toBackend returns the [layer.Route] in the context of requests from r to b. It carries r's name,
// and the labels of the policy (parent), of r and of b. The result is nil if b sets no labels: the caller
// then uses the Route of r, which is the same for all such backends.
func (r Route) toBackend(b *Backend, parent map[string]string) *layer.Route {
	if len(b.Labels) == 0 {
		return nil
	}
	labels := make(map[string]string, len(parent)+len(r.Labels)+len(b.Labels))
	for _, m := range []map[string]string{parent, r.Labels, b.Labels} {
		maps.Copy(labels, m)
	}
	return &layer.Route{Name: r.Name, Labels: labels, Value: r.Value}
}

// backend returns the service for b. key must be b.key(). If a current backend's key is the same,
// backend returns its service. Otherwise it makes the service. If b is invalid or the callback that
// makes the service panics, backend calls drop and returns a service that fails each request. The
// caller must hold mu.
func (r *Router[Req, Rsp]) backend(b *Backend, key backendKey, drop func(error)) layer.Service[Req, Rsp] {
	if entry, ok := r.backendServices[key]; ok {
		return entry.svc
	}
	ctx, end := context.WithCancel(r.life) //nolint:gosec // end is called with the backend's removal
	var svc layer.Service[Req, Rsp]
	err := panics.Do("make the service", func() (err error) {
		svc, err = r.newBackend(ctx, b)
		return err
	})
	if svc == nil {
		err = cmp.Or(err, errors.New("no service was made"))
		drop(fmt.Errorf("backend %s: %w", b.label(), err))
		svc = failingBackend[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Endpoint: b.label(), Reason: "the backend is invalid", Err: err,
		}}
	}
	r.backendServices[key] = backendService[Req, Rsp]{svc, end}
	return svc
}

// backendService is the service of a backend, and ends the context with which it was made.
type backendService[Req, Rsp any] struct {
	svc layer.Service[Req, Rsp]
	end context.CancelFunc
}

// newBackend makes the service of b, which ctx ends, or returns the mistake in b.
func (r *Router[Req, Rsp]) newBackend(ctx context.Context, b *Backend) (layer.Service[Req, Rsp], error) {
	err := b.Validate()
	switch {
	case err != nil:
		return nil, err
	case r.backends != nil:
		return r.backends(ctx, b), nil
	case b.Endpoint == nil:
		return r.service(b.Authority), nil
	}
	return nil, errors.New("an endpoint requires WithBackends")
}

// Validate returns the reason why requests to b fail, or nil if b is valid.
func (b *Backend) Validate() error {
	switch {
	case b.Missing != "":
		return errors.New(b.Missing)
	case b.Endpoint != nil:
		return b.Endpoint.Validate()
	}
	return b.Target.Validate()
}

// failingBackend is an invalid backend's service. It fails each request. It is always ready, so
// that it keeps its share of the requests.
type failingBackend[Req, Rsp any] struct{ err error }

// Ready returns nil, so that the backend is drawn as often as its weight requires.
func (f failingBackend[Req, Rsp]) Ready(context.Context) error                  { return nil }
func (f failingBackend[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, _ error) { return rsp, f.err }
func (f failingBackend[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "missing", State: layer.State{{Key: "err", Value: f.err.Error()}}}
}

// filtered returns svc with layers for the filters of b: see the method filters.
func (r *Router[Req, Rsp]) filtered(b *Backend, svc layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	if !b.hasFilters() {
		return svc
	}
	route, _ := b.filters().valid() // stackOf reports the invalid parts
	a := &routeStack[Req, Rsp]{Router: r, route: route, arrival: time.Now()}
	st := layer.NewStack[Req](a.options(r.protocol.Classify)...)
	return a.changeRequests(a.addOnce(a.changeResponses(st))).Service(svc)
}

// hasFilters reports whether b changes, redirects or fails requests of its own.
func (b *Backend) hasFilters() bool {
	return !b.RequestHeader.Empty() || !b.ResponseHeader.Empty() || b.Redirect != nil || len(b.Faults) > 0
}

// filters returns a Route with those fields of b that mean the same in a Route.
func (b *Backend) filters() Route {
	return Route{RequestHeader: b.RequestHeader, ResponseHeader: b.ResponseHeader, Redirect: b.Redirect, Faults: b.Faults}
}

// backendKey identifies the service of a Backend: a text that describes it, and its Value. Backends with
// the same key share one service.
type backendKey struct {
	text  string
	value any
}

// key returns the key of b's service. That of a mere authority is this alone, which needs no formatting.
func (b *Backend) key() backendKey {
	if b.Endpoint == nil && b.Missing == "" && b.Balancing == (Balancing{}) {
		return backendKey{b.Authority, b.Value}
	}
	endpoint := ""
	if b.Endpoint != nil {
		endpoint = fmt.Sprintf("%+v", *b.Endpoint)
	}
	return backendKey{strings.Join([]string{b.Authority, endpoint, b.Missing, fmt.Sprintf("%+v", b.Balancing)}, "\x00"), b.Value}
}

// label returns the name of b in explanations: its Endpoint's address, or else its authority.
func (b *Backend) label() string {
	if b.Endpoint != nil {
		return b.Endpoint.Addr.String()
	}
	return cmp.Or(b.Authority, "missing")
}

// forgetBackends forgets the services of backends that s does not use. The caller must hold mu.
func (r *Router[Req, Rsp]) forgetBackends(s *snapshot[Req, Rsp]) {
	used := make(map[backendKey]backendService[Req, Rsp], len(r.backendServices))
	mark := func(parts []part[Req, Rsp]) {
		for i := range parts {
			if b, ok := r.backendServices[parts[i].key]; ok {
				used[parts[i].key] = b
			}
		}
	}
	mark(s.split.parts)
	for _, route := range s.routes {
		if route.split != nil {
			mark(route.split.parts)
		}
	}
	r.backendServices = used
}

// routesSplit returns a split with the backends of all routes in s if no request needs another target: the
// profile sets RoutesOnly and each route names backends. The Router's Ready then waits for one of them. In all other
// cases, the split is empty. The caller must hold mu.
func (r *Router[Req, Rsp]) routesSplit(s *snapshot[Req, Rsp]) (all split[Req, Rsp]) {
	if !s.profile.RoutesOnly || slices.ContainsFunc(s.routes, func(l *liveRoute[Req, Rsp]) bool { return l.split == nil }) {
		return all
	}
	keys := make(map[backendKey]bool, len(r.backendServices))
	for _, route := range s.routes {
		for _, p := range route.split.parts {
			if b, ok := r.backendServices[p.key]; ok && !keys[p.key] {
				keys[p.key] = true
				all.add(p.Target, b.svc, p.key)
			}
		}
	}
	return all
}
