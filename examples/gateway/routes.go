package main

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// newRoute returns the service for the requests of the route def. This service applies the
// settings that package profiles does not support, such as CORS. It then calls next, which
// applies the other settings. For each attempt of a request, next calls [routeBackends].
func (g *gateway) newRoute(def profiles.Route, next httplayer.Service) httplayer.Service {
	c := g.current.Load()
	r := c.routes[def.Labels[config.VersionLabel]]
	if r == nil { // replaced by two later configurations already
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return nil, &layer.Error{Layer: "gateway", Kind: layer.ErrNotReady, Reason: "the route was replaced"}
		})
	}
	services := make(map[config.Name]httplayer.Service)
	for _, name := range r.Services() {
		services[name] = g.services.Service(cmp.Or(c.services[name], c.replaced[name]))
	}
	return layer.Lazy(func() httplayer.Service { return g.routeService(def, r, services, next) })
}

// routeService returns the service of the route r. The service applies the settings of r
// that package profiles does not support. It then calls the argument next, which applies
// the other settings. The argument services has the services to which r refers, by name.
func (g *gateway) routeService(
	def profiles.Route, r *config.Route, services map[config.Name]httplayer.Service, next httplayer.Service,
) httplayer.Service {
	var asked httplayer.Service
	if r.ExternalAuth != nil {
		asked = services[r.ExternalAuth.BackendRef.Name]
	}
	to := g.metrics.Route(def.Name, "")
	st := httplayer.NewStack(httplayer.WithTarget(def.Name), httplayer.WithMetrics(to)).
		Metrics(to).
		With("cors", cors(r.CORS)).
		With("external_auth", externalAuth(r.ExternalAuth, asked))
	if l := r.RateLimit; l != nil && l.Per == "Client" {
		st = st.With("rate_by", httplayer.RateLimitByClient(l.RequestsPerSecond, l.Bucket()))
	}
	return st.
		With("rewrite", rewrite(r)).
		Service(&withBackends{Service: next, backends: g.backends(def.Name, r, services)})
}

// routeMetrics returns the instruments with which package profiles measures the route def, such
// as the counter of retries. The result named requests omits the instruments of the layer
// Metrics, because routeService adds that layer itself. The result named attempts is empty,
// because the services of a split measure the attempts.
func (g *gateway) routeMetrics(def profiles.Route) (requests, attempts layer.Instruments) {
	requests = g.metrics.Route(def.Name, "")
	requests.Requests, requests.Rejections, requests.Responses = nil, nil, nil
	requests.InFlight, requests.TimeToHeaders, requests.Latency = nil, nil, nil
	return requests, attempts
}

// noRoute returns the service for requests that match no route. It responds with 404.
func noRoute(httplayer.Service) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		return nil, &httplayer.StatusError{Code: http.StatusNotFound, Reason: "no route", Detail: "no route matches the request"}
	})
}

// backends returns the service that gets each attempt of the route r: a split of its
// services, a fixed response, or a redirect. The metrics of an attempt have two labels: the
// argument route and the name of the service.
func (g *gateway) backends(route string, r *config.Route, services map[config.Name]httplayer.Service) httplayer.Service {
	if r.DirectResponse != nil {
		return direct(r.DirectResponse)
	}
	if r.RequestRedirect != nil {
		return redirectHere(r.RequestRedirect)
	}
	s := &split{}
	for _, b := range r.BackendRefs {
		if b.Weight > 0 {
			s.total += b.Weight
			svc := httplayer.NewStack().Metrics(g.metrics.Route(route, string(b.Name))).Service(services[b.Name])
			s.parts = append(s.parts, share{string(b.Name), b.Weight, svc})
		}
	}
	return s
}

// backendsKey is the context key of the service that [gateway.backends] returned.
type backendsKey struct{}

// withBackends is a service that adds the value of its field backends to the context of
// each request, and calls the inner service. Later, [routeBackends] sends the request to
// the service in the context.
type withBackends struct {
	httplayer.Service

	backends httplayer.Service
}

func (w *withBackends) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return w.Service.Call(context.WithValue(ctx, backendsKey{}, w.backends), req)
}

// Next returns the inner service, so that [layer.Describe] can describe it.
func (w *withBackends) Next() httplayer.Service { return w.Service }

func (w *withBackends) Describe() layer.Node { return layer.Node{Name: "with_backends"} }

// routeBackends is the last service in the stack of each route. It sends a request to the
// service that [withBackends] has added to the context of the request.
type routeBackends struct{}

func (routeBackends) Ready(context.Context) error { return nil }

func (routeBackends) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	backends, ok := ctx.Value(backendsKey{}).(httplayer.Service)
	if !ok {
		return nil, &layer.Error{Layer: "gateway", Kind: layer.ErrNoRoute}
	}
	return backends.Call(ctx, req)
}

func (routeBackends) Describe() layer.Node { return layer.Node{Name: "backends"} }

// split sends each request to one of several services, chosen at random by weight. It is
// immutable.
type split struct {
	parts []share
	total int
}

// share is one service of a split and its weight.
type share struct {
	name   string
	weight int
	svc    httplayer.Service
}

func (s *split) Ready(context.Context) error { return nil } // Call selects the service

// Call sends the request to a service that is chosen at random by weight. If that service
// rejects the request, Call tries the other services in the order of the configuration.
func (s *split) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	first := s.pick()
	rsp, err := s.call(ctx, first, req)
	for i := 0; i < len(s.parts) && err != nil && errors.Is(err, layer.ErrNotReady) && ctx.Err() == nil; i++ {
		if i != first {
			rsp, err = s.call(ctx, i, req)
		}
	}
	return rsp, err
}

func (s *split) call(ctx context.Context, i int, req *http.Request) (*http.Response, error) {
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		why.Add(layer.Node{Name: "split", State: layer.State{
			{Key: "service", Value: s.parts[i].name}, {Key: "weight", Value: s.parts[i].weight},
		}})
	}
	return s.parts[i].svc.Call(ctx, req)
}

func (s *split) pick() int {
	if len(s.parts) == 1 {
		return 0
	}
	n, i := rand.IntN(s.total), 0
	for ; n >= s.parts[i].weight; i++ {
		n -= s.parts[i].weight
	}
	return i
}

// direct returns a service that responds with the fixed response d.
func direct(d *config.DirectResponse) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		rsp := httplayer.Editor{}.NewResponse(req, layer.DirectResponse{Status: int(d.Status), Message: string(d.Body)})
		if rsp.Body != http.NoBody && rsp.Header.Get("Grpc-Status") == "" {
			rsp.Header.Set("Content-Type", string(d.ContentType))
		}
		return rsp, nil
	})
}

// redirectHere returns a service that redirects each request to the URL of the request itself.
// The argument to specifies the status of the response. Package profiles does not redirect a
// request to its own URL, but the Gateway API requires it.
func redirectHere(to *config.RequestRedirect) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		here := *req.URL
		here.Scheme, here.Host = httplayer.Accessor{}.Scheme(req), httplayer.Accessor{}.Authority(req)
		return httplayer.Editor{}.NewResponse(req, layer.DirectResponse{
			Status: to.Status(), GRPC: uint32(codes.NotFound), Message: "redirected to " + here.String(),
			Header: []layer.HeaderField{{Name: "Location", Value: here.String()}},
		}), nil
	})
}

// rewrite returns the layer that applies the field urlRewrite of the route r. It returns
// nil if the field is not set.
func rewrite(r *config.Route) httplayer.Layer {
	u := r.URLRewrite
	if u == nil {
		return nil
	}
	return layer.MapRequest[*http.Request, *http.Response](func(req *http.Request) *http.Request {
		if u.Hostname != "" {
			host := layer.HeaderField{Name: "Host", Value: string(u.Hostname)}
			req = httplayer.Editor{}.EditRequest(req, layer.HeaderMutation{Set: []layer.HeaderField{host}})
		}
		if u.Path == nil {
			return req
		}
		path := string(u.Path.ReplaceFullPath)
		if to := u.Path.ReplacePrefixMatch; to != nil {
			path = replacePrefix(req.URL.EscapedPath(), r.Prefix(), string(*to))
		}
		copied := *req
		copied.URL = withPath(req.URL, path)
		return &copied
	})
}

// normalPath returns req with the normal form of its path. Otherwise a client could avoid a route and
// its externalAuth: many services treat /%61dmin and /a/../admin as /admin.
func normalPath(req *http.Request) *http.Request {
	path := req.URL.EscapedPath()
	normal := config.NormalPath(path)
	if normal == path {
		return req
	}
	copied := *req
	copied.URL = withPath(req.URL, normal)
	return &copied
}

// replacePrefix returns path with the prefix at its start replaced by replacement. path,
// prefix and replacement are percent-encoded.
func replacePrefix(path, prefix, replacement string) string {
	rest := strings.TrimPrefix(path, strings.TrimSuffix(prefix, "/"))
	path = strings.TrimSuffix(replacement, "/") + rest
	if path == "" {
		return "/"
	}
	return path
}

// withPath returns a copy of u with the given path, which is percent-encoded.
func withPath(u *url.URL, path string) *url.URL {
	copied := *u
	copied.RawPath = path
	if plain, err := url.PathUnescape(path); err == nil {
		copied.Path = plain
	}
	return &copied
}
