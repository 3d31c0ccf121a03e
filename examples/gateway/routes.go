package main

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// route is a route of the configuration with the services to which it refers. It is the Value of the route
// and of its backends in the profile. It stays the same until its configuration or one of its services changes.
type route struct {
	*config.Route

	services []*upstream        // those of Route.Services, in this order
	shares   []profiles.Backend // the result of backends
}

// routeOf returns the route c. services has those to which it refers.
func routeOf(c *config.Route, services map[config.Name]*upstream) *route {
	// Later configurations may keep the route, and must not keep all routes of this one with it.
	clone := *c
	names := c.Services()
	r := &route{Route: &clone, services: make([]*upstream, 0, len(names))}
	for _, name := range names {
		r.services = append(r.services, services[name])
	}
	r.shares = r.backends()
	return r
}

// keeps reports whether r can be used for the route c. services has those to which c refers.
func (r *route) keeps(c *config.Route, services map[config.Name]*upstream) bool {
	if r == nil || !r.Equal(c) {
		return false
	}
	for i, name := range c.Services() {
		if r.services[i] != services[name] {
			return false
		}
	}
	return true
}

// service returns the service with the given name, which is one of Route.Services.
func (r *route) service(name config.Name) *upstream {
	return r.services[slices.Index(r.Services(), name)]
}

// backends returns the backends of r for the profile: the services, or what responds instead of a service.
func (r *route) backends() []profiles.Backend {
	if len(r.BackendRefs) == 0 {
		return []profiles.Backend{{Target: profiles.Target{Authority: r.Describe(), Weight: 1}, Value: r}}
	}
	backends := make([]profiles.Backend, 0, len(r.BackendRefs))
	for _, b := range r.BackendRefs {
		target := profiles.Target{Authority: string(b.Name), Weight: uint32(b.Weight)}
		backends = append(backends, profiles.Backend{Target: target, Value: r})
	}
	return backends
}

// newRoute returns the service for the requests of the route def. This service applies the
// settings that package profiles does not support, such as CORS. It then calls next, which
// applies the other settings. For each attempt of a request, next calls a service of [gateway.newBackend].
func (g *gateway) newRoute(def profiles.Route, next httplayer.Service) httplayer.Service {
	r, ok := def.Value.(*route)
	if !ok { // of another source
		r = &route{Route: &config.Route{Name: config.Name(def.Name)}}
	}
	// A file may have thousands of routes, of which most are rarely used.
	return layer.Lazy(func() httplayer.Service { return g.routeService(r, next) })
}

// routeService returns the service of the route r. The service applies the settings of r
// that package profiles does not support. It then calls next, which applies
// the other settings.
func (g *gateway) routeService(r *route, next httplayer.Service) httplayer.Service {
	// Both services come from the cache that all routes share.
	var authorizer httplayer.Service
	if r.ExternalAuth != nil {
		authorizer = g.services.Service(r.service(r.ExternalAuth.BackendRef.Name))
	}
	var counter httplayer.Service
	if c := r.RateLimitService(); c != nil {
		counter = g.services.Service(r.service(c.BackendRef.Name))
	}
	name := string(r.Name)
	instruments := g.metrics.Route(name, "")
	st := httplayer.NewStack().WithTarget(name).WithMetrics(instruments).
		With("tap", tap.Routed[*http.Request, *http.Response](g.tap)).
		Metrics(instruments).
		With("cors", cors(r.CORS)).
		With("rate_by_client", rateLimitByClient(r.RateLimit)) // first, so that it also limits attempts to guess passwords
	return g.withAccess(st, &r.Access).
		With("external_auth", externalAuth(r.ExternalAuth, authorizer)).
		With("rate_by_header", rateLimitByHeader(r.RateLimit)). // those above may set the field
		With("global_rate_limit", g.globalRateLimit(name, r.Route, counter)).
		With("header_modifiers", headerModifiers(r.Route)).
		Service(next)
}

// routeMetrics returns the instruments for what package profiles measures on a route, such as
// retries. Instruments for requests are left out where routeService measures them itself, in the
// layer Metrics. attempts is empty, because a split's services measure attempts.
func (g *gateway) routeMetrics(def profiles.Route) (requests, attempts layer.Instruments) {
	// A nil instrument is not written.
	requests = g.metrics.Route(def.Name, "")
	requests.Requests = nil
	requests.Rejections = nil
	requests.Responses = nil
	requests.InFlight = nil
	requests.TimeToHeaders = nil
	requests.Latency = nil
	return requests, attempts
}

// noRoute responds with 404 to requests that match no route.
func noRoute() httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		return nil, &httplayer.StatusError{Code: http.StatusNotFound, Reason: "no route", Detail: "no route matches the request"}
	})
}

// newBackend returns the service for the attempts that b gets: a service of the configuration, with
// metrics by route and service, a fixed response, a redirect, or files.
func (g *gateway) newBackend(_ context.Context, b *profiles.Backend) httplayer.Service {
	r, ok := b.Value.(*route)
	// The order matters: only a route without a response of its own has services.
	switch {
	case !ok: // of another source
		return g.named(b.Authority)
	case r.DirectResponse != nil:
		return direct(r.DirectResponse)
	case r.RequestRedirect != nil:
		return redirectHere(r.RequestRedirect)
	case r.StaticFiles != nil:
		return staticFiles(r.StaticFiles)
	}
	svc := g.services.Service(r.service(config.Name(b.Authority)))
	return layer.Lazy(func() httplayer.Service {
		return httplayer.NewStack().Metrics(g.metrics.Route(string(r.Name), b.Authority)).Service(svc)
	})
}

// direct returns a service that always responds with d.
func direct(d *config.DirectResponse) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		rsp := httplayer.HTTP{}.NewResponse(req, layer.DirectResponse{Status: int(d.Status), Message: string(d.Body)})
		// A gRPC client gets the status in headers, and no body.
		if rsp.Body != http.NoBody && rsp.Header.Get("Grpc-Status") == "" {
			rsp.Header.Set("Content-Type", string(d.ContentType))
		}
		return rsp, nil
	})
}

// redirectHere returns a service that redirects each request to its own URL, with the status in
// redirect. The Gateway API requires this, but package profiles does not do it.
func redirectHere(redirect *config.RequestRedirect) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		a := httplayer.HTTP{}
		here := a.Scheme(req) + "://" + a.Authority(req) + a.Path(req)
		if query := a.Query(req); query != "" {
			here += "?" + query
		}
		return httplayer.HTTP{}.NewResponse(req, layer.DirectResponse{
			Status: redirect.Status(), GRPC: uint32(codes.NotFound), Message: "redirected to " + here,
			Header: []layer.HeaderField{{Name: "Location", Value: here}},
		}), nil
	})
}

// normalPath returns a layer that normalizes paths as c configures, before routes are compared.
// Otherwise a client could get around a route and its externalAuth. It returns nil if paths
// should be forwarded as they arrive.
func (g *gateway) normalPath(c *config.ListenerPath) httplayer.Layer {
	if !c.Normalize {
		return nil
	}
	policy := c.Policy()
	normalize := httplayer.NormalizePath(policy)
	// Parameters in paths are then allowed, whatever they decide.
	if slices.Contains(c.Allow, ";") {
		return normalize
	}
	return func(next httplayer.Service) httplayer.Service {
		return normalize(&parametersService{next, g.router, policy})
	}
}

// parametersService rejects a request if the parameters in its path decide about its route, as in
// /admin;x. Some services ignore parameters and others do not, so such a request could get around
// a rule.
type parametersService struct {
	httplayer.Service

	router *profiles.Router[*http.Request, *http.Response]
	policy httplayer.PathPolicy
}

// parameters matches the parameters in a path segment.
var parameters = regexp.MustCompile(`;[^/]*`)

// Call refuses a request if its path without parameters, such as ";v=1", would match another route. A service that
// ignores parameters would otherwise serve a path that the other route protects.
func (s *parametersService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if path := (httplayer.HTTP{}).Path(req); strings.Contains(path, ";") {
		// bare is the path as a service sees it that ignores parameters.
		bare, err := s.policy.Normalize(parameters.ReplaceAllString(path, ""))
		if err != nil {
			return nil, err
		}
		route, err := s.router.Route(ctx, req)
		if err != nil {
			return nil, err
		}
		copied := *req
		copied.URL = withPath(req.URL, bare)
		bareRoute, err := s.router.Route(ctx, &copied)
		if err != nil {
			return nil, err
		}
		// The routes differ if only one exists, or if both have different names.
		if route != bareRoute && (route == nil || bareRoute == nil || route.Name != bareRoute.Name) {
			const reason = "the path matches another route without its parameters, which some services ignore"
			return nil, &httplayer.StatusError{Code: http.StatusBadRequest, Reason: reason, Detail: reason}
		}
	}
	return s.Service.Call(ctx, req)
}

// withPath returns a copy of u with the given percent-encoded path.
func withPath(u *url.URL, path string) *url.URL {
	copied := *u
	copied.RawPath = path
	if plain, err := url.PathUnescape(path); err == nil {
		copied.Path = plain
	}
	return &copied
}
