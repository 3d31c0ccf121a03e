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

// WithBackends sets the function mk, which makes the service for a backend of a [Route].
// Backends with equal Authority, Endpoint, Missing, Balancing and Value share one service. The service is
// kept until a profile contains no such backend; mk must release the services of earlier backends.
// Without this option, [New]'s mk makes the service for an Authority, and [WithForward]'s for an
// Endpoint.
func WithBackends[Req, Rsp any](mk layer.MakeService[*Backend, Req, Rsp]) Option[Req, Rsp] {
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
		s.add(Target{Authority: b.label(), Weight: b.Weight}, svc)
		last := &s.parts[len(s.parts)-1]
		if last.key = key; labels {
			last.route = cmp.Or(route.def.toBackend(b, parent), route.info)
		}
	}
	if len(s.parts) == 0 {
		s.add(Target{Authority: "none", Weight: 1}, failingBackend[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Kind: layer.ErrNotReady, Reason: "the route has no backends",
		}})
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
	return &layer.Route{Name: r.Name, Labels: labels}
}

// backend returns the service for b. key must be b.key(). If a current backend's key is the same,
// backend returns its service. Otherwise it makes the service. If b is invalid or the callback that
// makes the service panics, backend calls drop and returns a service that fails each request. The
// caller must hold mu.
func (r *Router[Req, Rsp]) backend(b *Backend, key backendKey, drop func(error)) layer.Service[Req, Rsp] {
	if svc, ok := r.backendServices[key]; ok {
		return svc
	}
	var svc layer.Service[Req, Rsp]
	err := panics.Do("make the service", func() (err error) {
		svc, err = r.newBackend(b)
		return err
	})
	if svc == nil {
		err = cmp.Or(err, errors.New("no service was made"))
		drop(fmt.Errorf("backend %s: %w", b.label(), err))
		svc = failingBackend[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Endpoint: b.label(), Reason: "the backend is invalid", Err: err,
		}}
	}
	if r.backendServices == nil {
		r.backendServices = make(map[backendKey]layer.Service[Req, Rsp])
	}
	r.backendServices[key] = svc
	return svc
}

// newBackend makes the service of b, or returns the mistake in b.
func (r *Router[Req, Rsp]) newBackend(b *Backend) (layer.Service[Req, Rsp], error) {
	err := b.Validate()
	switch {
	case err != nil:
		return nil, err
	case r.backends != nil:
		return r.backends(b), nil
	case b.Endpoint == nil:
		return r.service(b.Authority), nil
	case r.forward != nil:
		return r.forward(b.Endpoint), nil
	}
	return nil, errors.New("an endpoint requires WithForward or WithBackends")
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

// releaseBackends forgets the services of backends that no route in s uses. If the profile of s sets
// RoutesOnly and each route names backends, no request goes to s.split. In this case,
// releaseBackends sets s.split to all backends in use, so that the Router's Ready waits for one
// of them. The caller must hold mu.
func (r *Router[Req, Rsp]) releaseBackends(s *snapshot[Req, Rsp]) {
	used := make(map[backendKey]layer.Service[Req, Rsp], len(r.backendServices))
	backends := split[Req, Rsp]{apex: s.split.apex}
	unused := s.profile.RoutesOnly // whether no request goes to s.split
	for _, route := range s.routes {
		if route.split == nil {
			unused = false
			continue
		}
		for _, p := range route.split.parts {
			if svc, ok := r.backendServices[p.key]; ok && used[p.key] == nil {
				used[p.key] = svc
				if unused {
					backends.add(p.Target, svc)
				}
			}
		}
	}
	r.backendServices = used
	if unused && len(backends.parts) > 0 {
		s.split = backends
	}
}
