package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// newRoute returns the service of a route. next applies what package profiles knows of the
// route, and calls routeBackends for each attempt.
func (g *gateway) newRoute(def profiles.Route, next httplayer.Service) httplayer.Service {
	r := g.current.Load().routes[def.Labels[config.VersionLabel]]
	if r == nil { // replaced by two later configurations already
		return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return nil, &layer.Error{Layer: "gateway", Kind: layer.ErrNotReady, Reason: "the route was replaced"}
		})
	}
	var asked httplayer.Service
	if r.ExternalAuth != nil {
		asked = g.services.Service(g.current.Load().services[r.ExternalAuth.BackendRef.Name])
	}
	to := g.metrics.Route(def.Name, "")
	st := httplayer.NewStack(httplayer.WithTarget(def.Name), httplayer.WithMetrics(to)).
		Metrics(to).
		With("cors", cors(r.CORS)).
		With("external_auth", externalAuth(r.ExternalAuth, asked))
	if l := r.RateLimit; l != nil && l.Per == "Client" {
		st = st.With("rate_by", layer.RateLimitBy[netip.Addr, *http.Request, *http.Response](clientOf, l.RequestsPerSecond, l.Bucket(), 0))
	}
	return st.
		With("rewrite", rewrite(r)).
		Service(&withBackends{Service: next, backends: g.backends(def.Name, r)})
}

// clientOf returns the address of the client, as trusted proxies report it.
func clientOf(req *http.Request) netip.Addr { return httplayer.ClientFromContext(req.Context()) }

// noRoute answers requests without a route.
func noRoute(httplayer.Service) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		return nil, &httplayer.StatusError{Code: http.StatusNotFound, Reason: "no route", Detail: "no route matches the request"}
	})
}

// backends returns the service to which the requests of a route go. The metrics of the
// attempts have the labels of the route and of the service.
func (g *gateway) backends(route string, r *config.Route) httplayer.Service {
	if r.DirectResponse != nil {
		return direct(r.DirectResponse)
	}
	if len(r.BackendRefs) == 0 { // a request that already is at the location of a redirect
		return noRoute(nil)
	}
	services := g.current.Load().services
	s := &split{}
	for _, b := range r.BackendRefs {
		if b.Weight > 0 {
			s.total += b.Weight
			svc := httplayer.NewStack().Metrics(g.metrics.Route(route, string(b.Name))).Service(g.services.Service(services[b.Name]))
			s.parts = append(s.parts, share{string(b.Name), b.Weight, svc})
		}
	}
	return s
}

// backendsKey is the key of the backends in the context of a request.
type backendsKey struct{}

// withBackends passes the backends of a route to routeBackends.
type withBackends struct {
	httplayer.Service

	backends httplayer.Service
}

func (w *withBackends) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return w.Service.Call(context.WithValue(ctx, backendsKey{}, w.backends), req)
}

// routeBackends is the innermost service of all routes.
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

// split shares requests among services by weight. It is immutable.
type split struct {
	parts []share
	total int
}

// share is a service with its weight.
type share struct {
	name   string
	weight int
	svc    httplayer.Service
}

func (s *split) Ready(context.Context) error { return nil } // the service of a request is unknown

// Call sends the request to a service that is picked at random. If that rejects the request, the
// others are tried in order.
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

// direct answers with a fixed response.
func direct(d *config.DirectResponse) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		rsp := httplayer.Editor{}.NewResponse(req, layer.DirectResponse{Status: int(d.Status), Message: string(d.Body)})
		if rsp.Body != http.NoBody && rsp.Header.Get("Grpc-Status") == "" {
			rsp.Header.Set("Content-Type", string(d.ContentType))
		}
		return rsp, nil
	})
}

// rewrite returns the layer of urlRewrite, or nil.
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

// replacePrefix replaces the segments prefix at the start of path.
func replacePrefix(path, prefix, to string) string {
	rest := strings.TrimPrefix(path, strings.TrimSuffix(prefix, "/"))
	path = strings.TrimSuffix(to, "/") + rest
	if path == "" {
		return "/"
	}
	return path
}

// withPath returns u with another percent-encoded path.
func withPath(u *url.URL, path string) *url.URL {
	copied := *u
	copied.RawPath = path
	if plain, err := url.PathUnescape(path); err == nil {
		copied.Path = plain
	}
	return &copied
}
