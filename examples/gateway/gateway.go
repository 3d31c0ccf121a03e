package main

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/promtower"
	"github.com/gotower/gotower/tap"
)

// gateway has the state that all listeners share. The path of a request through its parts
// is:
//
//	listener ─▶ access log ─▶ route ─▶ CORS, authentication, rate limit of a client    routes.go
//	                            │
//	                            ▼ limits, mirrors, timeout, faults, retry, hedge       package profiles
//	                          split ─▶ service: queue ─▶ balancer ─▶ endpoint          services.go
//
// A new configuration replaces the routes at once. A request that has a route keeps that
// route until it ends. A route keeps its state, such as its rate limits, unless the
// configuration of the route or of one of its services changes. A service keeps its
// connections unless its own configuration changes.
type gateway struct {
	log      *slog.Logger
	tap      *tap.Registry
	registry *registry
	metrics  *promtower.Metrics // metrics in registry
	tracing  *tracing           // nil if requests are not traced
	services *layer.Cache[*config.Service, *http.Request, *http.Response]
	source   profiles.Static
	router   *profiles.Router[*http.Request, *http.Response]

	loading sync.Mutex // held by load
	current atomic.Pointer[generation]
}

// generation is one loaded configuration and its state. Each load creates a generation.
type generation struct {
	*config.Config

	services map[config.Name]*config.Service // the values are the keys of gateway.services
	// routes has the routes of this and of the previous generation, by version, and replaced has
	// the services of the previous one. The router may still use the previous routes for a short time.
	routes   map[string]*config.Route
	replaced map[config.Name]*config.Service
	profile  *profiles.Profile
	release  context.CancelFunc // lets a service close a minute after its last request
}

// target is the authority of the only profile of the gateway, which has all routes. For this
// authority, the method [gateway.target] returns the service that sends each request to the
// backends of its route. Its port is not 80, because a service can have the name gateway; see
// [config.Name.Authority].
const target = "gateway:1"

// newGateway returns a gateway with the configuration c. The background work of the gateway
// ends when ctx ends.
func newGateway(ctx context.Context, c *config.Config, log *slog.Logger) (*gateway, error) {
	g := &gateway{log: log, tap: tap.NewRegistry(), registry: &registry{Registry: prometheus.NewRegistry()}}
	g.metrics, g.tracing = promtower.New(g.registry), newTracing(c.Tracing, g.registry, log)
	g.services = layer.NewCache(ctx, g.newService, layer.CachePolicy{IdleTimeout: time.Minute}, layer.WithCompletion(httplayer.Completion))
	g.current.Store(&generation{Config: &config.Config{}, release: func() {}})
	if err := g.load(ctx, c); err != nil {
		return nil, err
	}
	g.router = profiles.New(ctx, target, &g.source, accessor{}, g.target,
		profiles.WithInitialWait[*http.Request, *http.Response](time.Minute), // the first profile is there already
		profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
		profiles.WithMetrics[*http.Request, *http.Response](g.routeMetrics),
		profiles.WithOnUpdate[*http.Request, *http.Response](g.deleteSeries),
		profiles.WithPerRoute(g.newRoute),
		profiles.WithDefaultRoute(noRoute),
		profiles.WithLogger[*http.Request, *http.Response](log))
	return g, nil
}

// handler returns the HTTP handler for the listener with the configuration c. The HTTP
// handler passes requests to the routes.
func (g *gateway) handler(c *config.Listener) http.Handler {
	trusted := make([]netip.Prefix, 0, len(c.TrustedProxies))
	for _, p := range c.TrustedProxies {
		trusted = append(trusted, p.Prefix)
	}
	svc := httplayer.NewStack().
		With("forwarded", httplayer.Forwarded(trusted...)).
		With("scheme", layer.MapRequest[*http.Request, *http.Response](clientScheme)).
		With("normal_path", layer.MapRequest[*http.Request, *http.Response](normalPath)).
		With("trace", g.tracing.request()).
		With("explain", tap.Explain[*http.Request, *http.Response](g.tap)).
		Service(g.router)
	h := httplayer.Handler(svc, httplayer.WithLogger(g.log), httplayer.WithErrorHandler(problem))
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Scheme = scheme // the scheme that a client sends is not trusted
		h.ServeHTTP(w, r)
	})
}

// clientScheme returns req with the scheme that the client of a trusted proxy used. The layer
// forwarded has removed X-Forwarded-Proto of other clients.
func clientScheme(req *http.Request) *http.Request {
	scheme := req.Header.Get("X-Forwarded-Proto")
	if scheme == req.URL.Scheme || scheme != "http" && scheme != "https" {
		return req
	}
	copied, u := *req, *req.URL
	u.Scheme, copied.URL = scheme, &u
	return &copied
}

// load makes c the configuration of new requests. A service that is not in c is closed a
// minute after its last request.
func (g *gateway) load(ctx context.Context, c *config.Config) error {
	g.loading.Lock()
	defer g.loading.Unlock()
	before := g.current.Load()
	next := &generation{
		Config: c, profile: c.Profile(), replaced: before.services,
		services: make(map[config.Name]*config.Service, len(c.Services)), routes: make(map[string]*config.Route, len(c.Routes)),
	}
	for i := range c.Services {
		s := &c.Services[i]
		if old := before.services[s.Name]; old != nil && old.Version() == s.Version() {
			s = old // the same key keeps the service with its connections
		}
		next.services[s.Name] = s
	}
	for i := range before.Routes {
		next.routes[before.Routes[i].Version()] = &before.Routes[i]
	}
	for i := range c.Routes {
		next.routes[c.Routes[i].Version()] = &c.Routes[i]
	}
	var pinned context.Context
	pinned, next.release = context.WithCancel(ctx)
	for _, s := range next.services {
		if err := g.services.Pin(pinned, s); err != nil {
			next.release()
			return err
		}
	}
	g.current.Store(next)
	g.source.Set(target, next.profile)
	before.release()
	return nil
}

// isLoaded reports whether the router already uses the current configuration. The router
// receives a new configuration shortly after load.
func (g *gateway) isLoaded() bool {
	p := g.current.Load().profile
	return p != nil && g.router.Profile() == p
}

// target returns the service that the router calls for authority. If authority is the constant
// target, this service sends each request to the backends of its route. Otherwise authority is
// the name of a configured service with the port 80, and requests go to that service. The router
// uses such an authority for mirrored requests.
func (g *gateway) target(authority string) httplayer.Service {
	if authority == target {
		return routeBackends{}
	}
	name := config.Name(strings.TrimSuffix(authority, ":80"))
	return layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		s := g.current.Load().services[name]
		if s == nil {
			return nil, &layer.Error{Layer: "gateway", Target: string(name), Kind: layer.ErrNoRoute}
		}
		return g.services.Service(s).Call(ctx, req)
	})
}

// listenerKey is the context key of the name of the listener. The context of a connection
// and of its requests has this value.
type listenerKey struct{}

// accessor reads the properties of requests for the conditions of routes. It is
// httplayer.Accessor with the additional request header [config.ListenerHeader]. The value
// of the header is the name of the listener, so that a route can have a condition on it.
type accessor struct{ httplayer.Accessor }

func (accessor) RequestHeader(r *http.Request) layer.Header { return (*requestHeader)(r) }

type requestHeader http.Request

func (h *requestHeader) header() layer.Header {
	return httplayer.Accessor{}.RequestHeader((*http.Request)(h))
}

func (h *requestHeader) Get(name string) string {
	if name == config.ListenerHeader {
		listener, _ := (*http.Request)(h).Context().Value(listenerKey{}).(string)
		return listener
	}
	return h.header().Get(name)
}

func (h *requestHeader) Values(name string) []string {
	if name == config.ListenerHeader {
		return []string{h.Get(name)}
	}
	return h.Header.Values(name)
}

func (h *requestHeader) All() iter.Seq2[string, string] { return h.header().All() }

// describe returns the tree of the current routes and services for the admin page.
func (g *gateway) describe() layer.Node {
	return layer.Node{Name: "gateway", Children: []layer.Node{g.router.Describe(), g.services.Describe()}}
}
