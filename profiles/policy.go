package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Policy has the name and labels of a resource with a policy, and the profile of its connections
// that are not HTTP. linkerd's client policies have these parts, but its service profiles do not.
// NewPolicies of package profiles/linkerd makes profiles with a Policy.
type Policy struct {
	// name of the resource to which the policy is attached: "Service.default.web:80"
	Name   string
	Labels map[string]string // labels of this resource, for metrics and tap ("parent_name")

	// Connections is the profile of the connections that are not HTTP. A server of
	// connections uses it instead of the profile of the requests. nil means that the
	// profile of the requests also applies to connections.
	Connections *Profile

	// ServerNames reports whether the routes of Connections select TLS connections. A [Host] in
	// these routes applies to the server name in the ClientHello.
	ServerNames bool
}

// RoutePolicy has backends, further timeouts, rules for retries, and overrides by header fields for
// a [Route]. linkerd's client policies have these parts, but its service profiles do not.
type RoutePolicy struct {
	// Backends share the requests of the route in proportion to their weights. If Failover is true,
	// the first ready backend gets all requests. If all weights are 0, requests are rejected. An
	// invalid backend fails its share of the requests. nil means the targets of the profile. The
	// [layer.Route] of a request is added to the context when a backend is chosen, so the layers of
	// the route do not see it.
	Backends []Backend
	Failover bool

	// RequestTimeout limits the time of a request up to the end of its response, including
	// all attempts. ResponseTimeout limits the time of one attempt in the same way. (In
	// linkerd, this time begins only after the body of the request was sent.) IdleTimeout
	// limits the wait for each part of the response body. 0 means no limit.
	RequestTimeout  time.Duration
	ResponseTimeout time.Duration
	IdleTimeout     time.Duration

	// Retry replaces the fields Retryable, AttemptTimeout and Hedge of the route. nil means
	// that these fields of the route apply.
	Retry *Retry

	// Overrides allows requests to change their retries and timeouts by header fields:
	// l5d-retry-http, l5d-retry-grpc, l5d-retry-limit, l5d-retry-timeout, l5d-timeout (or
	// l5d-request-timeout) and l5d-response-timeout. The values have the form that linkerd
	// documents. The fields are removed before the request is forwarded. If a request has such a
	// field, Retryable, AttemptTimeout and Hedge of the route do not apply to it.
	Overrides bool
}

// Retry allows retries of requests with any method, without a budget. An attempt is retried if its
// response matches Statuses or GRPC. It is also retried if it exceeds AttemptTimeout or ends with
// an error of class [layer.Retryable]. An attempt that a layer or a backend rejects, with an error
// that matches [layer.ErrNotReady], is not retried.
type Retry struct {
	Max            int           // maximum number of retries of one request, 1 to 99
	MaxBodyBytes   int64         // requests with a larger body are sent once
	Statuses       []Status      // HTTP statuses that are retried
	GRPC           []GRPCStatus  // gRPC statuses that are retried
	AttemptTimeout time.Duration // limit of an attempt up to its response headers; 0 means none
	Backoff        layer.Backoff // the pause between attempts; zero means none
}

// Backend is a target of the requests of one route.
type Backend struct {
	Target
	Endpoint  *Endpoint // the only endpoint of the backend, instead of Authority; may be nil
	Balancing Balancing
	// labels of the backend's resource, for example "backend_name", for metrics and tap. If Labels
	// is not empty, the layers of the backend see a [layer.Route] that has the labels of the
	// policy, the route and the backend.
	Labels map[string]string
	// the reason with which the requests to the backend fail; "" if the backend exists
	Missing string

	// The following fields have the same meaning as in a [Route]. They apply to the
	// requests to this backend.
	RequestHeader, ResponseHeader layer.HeaderMutation
	Redirect                      *Redirect
	Faults                        []Fault
}

// Balancing configures the balancer of a backend. The function that is passed to
// [WithBackends] must apply it. A zero field means the default of the balancer.
type Balancing struct {
	Decay         time.Duration // time constant of the moving average of latencies
	Penalty       time.Duration // latency that is recorded for a failure
	QueueCapacity int           // number of requests that may wait for an endpoint
	QueueTimeout  time.Duration // longest wait for an endpoint
	// circuit breaker of each endpoint; the zero policy means no circuit breaker
	Breaker layer.BreakerPolicy
}

// WithBackends sets the function mk, which makes the service of a backend of a [RoutePolicy].
// Backends with equal Authority, Endpoint, Missing and Balancing share one service. The service is
// kept until a profile has no such backend. mk must release the services of earlier backends.
// Without this option, the function that was passed to [New] makes the service for an Authority.
// The function that was passed to [WithForward] makes the service for an Endpoint.
func WithBackends[Req, Rsp any](mk layer.MakeService[*Backend, Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.backends = mk }
}

// valid returns a copy of p in which negative timeouts are 0 and an invalid Retry is nil. It
// returns an error for each such part, and for each invalid part of the filters of a backend.
func (p RoutePolicy) valid() (RoutePolicy, []error) {
	var problems []error
	for _, d := range []struct {
		name  string
		value *time.Duration
	}{
		{"request timeout", &p.RequestTimeout},
		{"response timeout", &p.ResponseTimeout},
		{"idle timeout", &p.IdleTimeout},
	} {
		if *d.value < 0 {
			problems = append(problems, fmt.Errorf("%s %v is below 0", d.name, *d.value))
			*d.value = 0
		}
	}
	if p.Retry != nil {
		if err := p.Retry.validate(); err != nil {
			problems = append(problems, fmt.Errorf("retry: %w", err))
			p.Retry = nil
		}
	}
	for i := range p.Backends {
		_, errs := p.Backends[i].filters().valid()
		for _, err := range errs {
			problems = append(problems, fmt.Errorf("backend %d: %w", i, err))
		}
	}
	return p, problems
}

func (r *Retry) validate() error {
	switch {
	case r.Max < 1 || r.Max > maxRetries:
		return fmt.Errorf("max %d is not from 1 to %d", r.Max, maxRetries)
	case r.MaxBodyBytes < 0:
		return fmt.Errorf("max body bytes %d is below 0", r.MaxBodyBytes)
	case r.AttemptTimeout < 0:
		return fmt.Errorf("attempt timeout %v is below 0", r.AttemptTimeout)
	}
	if err := backoff.Check(r.Backoff); err != nil {
		return err
	}
	for _, s := range r.Statuses {
		if _, err := s.compileResponse(); err != nil {
			return err
		}
	}
	for _, g := range r.GRPC {
		if _, err := g.compileResponse(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Retry) retries(rsp response) bool {
	return slices.ContainsFunc(r.Statuses, func(s Status) bool { return s.holds(rsp) == yes }) ||
		slices.ContainsFunc(r.GRPC, func(g GRPCStatus) bool { return g.holds(rsp) == yes })
}

// MayRetry reports whether the requests of the route may be sent more than once.
func (r Route) MayRetry() bool {
	return r.Retryable || r.Policy != nil && (r.Policy.Retry != nil || r.Policy.Overrides)
}

func (a *routeStack[Req, Rsp]) retryPolicy(p *Retry) layer.RetryPolicy[Req, Rsp] {
	pause := p.Backoff
	if pause == (layer.Backoff{}) {
		pause = noBackoff()
	}
	keep := p.MaxBodyBytes
	if keep == 0 {
		keep = -1 // for layer.Retry, 0 means the default
	}
	return layer.RetryPolicy[Req, Rsp]{
		Budget: a.unlimited, MaxAttempts: p.Max + 1, AttemptTimeout: p.AttemptTimeout,
		Backoff: pause, MaxRetryAfter: maxErrorWait, MaxBodyBytes: keep,
		CanRetry: func(Req) bool { return true },
		RetryIf: func(o layer.Outcome[Rsp]) bool {
			if o.Err != nil {
				return a.retryableError(o)
			}
			status := a.access.Status(o.Response)
			return p.retries(response{status: status, header: a.access.ResponseHeader(o.Response)}) ||
				o.Ended && p.retries(response{status: status, trailer: a.access.ResponseTrailer(o.Response)})
		},
	}
}

// routeSplit returns the split among the backends of route. If route has no Policy or no list of
// Backends, routeSplit returns nil, and the split of the profile applies. The argument parent has
// the labels of the profile's Policy, for the context of requests. The caller must hold mu.
func (r *Router[Req, Rsp]) routeSplit(route *liveRoute[Req, Rsp], parent map[string]string, drop func(error)) *split[Req, Rsp] {
	p := route.def.Policy
	if p == nil || p.Backends == nil {
		return nil
	}
	s := &split[Req, Rsp]{apex: r.target, ordered: p.Failover}
	for i := range p.Backends {
		b := &p.Backends[i]
		if b.Weight == 0 {
			continue
		}
		key := b.key()
		svc := r.backend(b, key, drop)
		if r.layers != nil {
			svc = r.filtered(b, svc)
		}
		s.add(Target{Authority: b.label(), Weight: b.Weight}, svc)
		last := &s.parts[len(s.parts)-1]
		last.key, last.route = key, cmp.Or(route.def.toBackend(b, parent), route.info)
	}
	if len(s.parts) == 0 {
		s.add(Target{Authority: "none", Weight: 1}, failingBackend[Req, Rsp]{&layer.Error{
			Layer: layerName, Target: r.target, Kind: layer.ErrNotReady, Reason: "the route has no backends",
		}})
	}
	return s
}

// toBackend returns the [layer.Route] that is in the context of requests from the route r to b. It
// has the name of r, and the labels of the policy (the argument parent), of r and of b. The result
// is nil if b has no labels.
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

func (p *Policy) labels() map[string]string {
	if p == nil {
		return nil
	}
	return p.Labels
}

// backend returns the service of b. key must be the result of b.key(). If a current backend has
// the same key, backend returns its service. Otherwise it makes the service. If b is invalid or the
// callback that makes the service panics, backend calls drop and returns a service that fails each
// request. The caller must hold mu.
func (r *Router[Req, Rsp]) backend(b *Backend, key string, drop func(error)) layer.Service[Req, Rsp] {
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
		r.backendServices = make(map[string]layer.Service[Req, Rsp])
	}
	r.backendServices[key] = svc
	return svc
}

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

// failingBackend is the service of an invalid backend. It fails each request. It is always
// ready, so that it keeps its share of the requests.
type failingBackend[Req, Rsp any] struct{ err error }

// Ready returns nil, so that the backend is drawn as often as its weight requires.
func (f failingBackend[Req, Rsp]) Ready(context.Context) error                  { return nil }
func (f failingBackend[Req, Rsp]) Call(context.Context, Req) (rsp Rsp, _ error) { return rsp, f.err }
func (f failingBackend[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "missing", State: layer.State{{Key: "err", Value: f.err.Error()}}}
}

// filtered returns svc with layers for the filters of b: see the method filters.
func (r *Router[Req, Rsp]) filtered(b *Backend, svc layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	route, _ := b.filters().valid() // stackOf reports the invalid parts
	if r.layers.edit == nil {
		route, _ = withoutEdits(route)
	}
	a := &routeStack[Req, Rsp]{Router: r, route: route}
	st := layer.NewStack[Req](a.options(r.layers.classify)...)
	return a.changeRequests(a.addOnce(a.changeResponses(st))).Service(svc)
}

// filters returns a Route with the fields of b that have the same meaning as in a Route.
func (b *Backend) filters() Route {
	return Route{RequestHeader: b.RequestHeader, ResponseHeader: b.ResponseHeader, Redirect: b.Redirect, Faults: b.Faults}
}

// key returns a text that identifies the service of b. Backends with the same key share one
// service.
func (b *Backend) key() string {
	endpoint := ""
	if b.Endpoint != nil {
		type plain Endpoint // without the method String
		endpoint = fmt.Sprintf("%+v", plain(*b.Endpoint))
	}
	return strings.Join([]string{b.Authority, endpoint, b.Missing, fmt.Sprintf("%+v", b.Balancing)}, "\x00")
}

// label returns the name of b in explanations: the address of its Endpoint, or else its authority.
func (b *Backend) label() string {
	if b.Endpoint != nil {
		return b.Endpoint.Addr.String()
	}
	return cmp.Or(b.Authority, "missing")
}

// releaseBackends forgets the services of backends that no route of s uses. If the profile of s
// has RoutesOnly and each route has backends, no request goes to s.split. In this case,
// releaseBackends sets s.split to all backends in use, so that Ready of the Router waits for one
// of them. The caller must hold mu.
func (r *Router[Req, Rsp]) releaseBackends(s *snapshot[Req, Rsp]) {
	used := make(map[string]layer.Service[Req, Rsp], len(r.backendServices))
	all := split[Req, Rsp]{apex: s.split.apex}
	unused := s.profile.RoutesOnly // whether no request goes to s.split
	for _, route := range s.routes {
		if route.split == nil {
			unused = false
			continue
		}
		for _, p := range route.split.parts {
			if svc, ok := r.backendServices[p.key]; ok && used[p.key] == nil {
				used[p.key] = svc
				all.add(p.Target, svc)
			}
		}
	}
	r.backendServices = used
	if unused && len(all.parts) > 0 {
		s.split = all
	}
}

// describeTargets returns the targets of the split with their weights as a text, such as
// "web-v1:80 90, web-v2:80 10".
func (s *split[Req, Rsp]) describeTargets() string {
	texts := make([]string, 0, min(len(s.parts), maxExplained))
	for _, p := range s.parts[:min(len(s.parts), maxExplained)] {
		texts = append(texts, p.Authority+" "+strconv.FormatUint(uint64(p.Weight), 10))
	}
	return strings.Join(texts, ", ")
}

// hasEdits reports whether a backend of p changes headers, redirects requests, or has a fault with
// a response. This requires a layer.Editor.
func (p RoutePolicy) hasEdits() bool {
	return slices.ContainsFunc(p.Backends, func(b Backend) bool {
		_, without := withoutEdits(b.filters())
		return !without
	})
}
