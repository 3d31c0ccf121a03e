package main

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
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

// gateway is the path of a request, which reads from top to bottom:
//
//	listener ─▶ access log ─▶ route ─▶ CORS, authentication, rate limit of a client    routes.go
//	                            │
//	                            ▼ limits, mirrors, timeout, faults, retry, hedge       package profiles
//	                          split ─▶ service: queue ─▶ balancer ─▶ endpoint          services.go
//
// A new configuration replaces the routes at once. A request that has a route keeps it
// to its end. A route keeps its state, such as its rate limits, unless the route or one of its
// services changes. A service keeps its connections unless the service changes.
type gateway struct {
	log      *slog.Logger
	tap      *tap.Registry
	registry *prometheus.Registry
	metrics  *promtower.Metrics // in registry
	services *layer.Cache[*config.Service, *http.Request, *http.Response]
	source   profiles.Static
	router   *profiles.Router[*http.Request, *http.Response]

	current atomic.Pointer[generation]
}

// generation is a configuration that was loaded.
type generation struct {
	*config.Config

	services map[config.Name]*config.Service // the values are the keys of gateway.services
	routes   map[string]*config.Route        // by version; with those of the previous generation
	profile  *profiles.Profile
	release  context.CancelFunc // releases the services
}

// target is the name of the profile that has all routes.
const target = "gateway:80"

// newGateway returns a gateway with the configuration c. Its background work ends with ctx.
func newGateway(ctx context.Context, c *config.Config, log *slog.Logger) (*gateway, error) {
	g := &gateway{log: log, tap: tap.NewRegistry(), registry: prometheus.NewRegistry()}
	g.metrics = promtower.New(g.registry)
	g.services = layer.NewCache(ctx, g.newService, layer.CachePolicy{IdleTimeout: time.Minute}, layer.WithCompletion(httplayer.Completion))
	g.current.Store(&generation{Config: &config.Config{}, release: func() {}})
	if err := g.load(ctx, c); err != nil {
		return nil, err
	}
	g.router = profiles.New(ctx, target, &g.source, accessor{}, g.target,
		profiles.WithInitialWait[*http.Request, *http.Response](time.Minute), // the first profile is there already
		profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
		profiles.WithPerRoute(g.newRoute),
		profiles.WithDefaultRoute(noRoute),
		profiles.WithLogger[*http.Request, *http.Response](log))
	return g, nil
}

// handler returns the handler of a listener.
func (g *gateway) handler(c *config.Listener) http.Handler {
	trusted := make([]netip.Prefix, 0, len(c.TrustedProxies))
	for _, p := range c.TrustedProxies {
		trusted = append(trusted, p.Prefix)
	}
	svc := httplayer.NewStack().
		With("forwarded", httplayer.Forwarded(trusted...)).
		With("explain", tap.Explain[*http.Request, *http.Response](g.tap)).
		Service(g.router)
	return httplayer.Handler(svc, httplayer.WithLogger(g.log))
}

// load makes c the configuration of new requests. Services that are not in c are closed a
// minute after their last request.
func (g *gateway) load(ctx context.Context, c *config.Config) error {
	before := g.current.Load()
	next := &generation{
		Config: c, profile: c.Profile(),
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

// isLoaded reports whether requests use the current configuration.
func (g *gateway) isLoaded() bool {
	p := g.current.Load().profile
	return p != nil && g.router.Profile() == p
}

// target returns the service of a target of the profile: the backends of the route, or the
// service that a mirror names.
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

// listenerKey is the key of the name of the listener in the context of a request.
type listenerKey struct{}

// accessor provides the name of the listener as a request header for the conditions of
// routes.
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

// describe returns the live tree of routes and services.
func (g *gateway) describe() layer.Node {
	return layer.Node{Name: "gateway", Children: []layer.Node{g.router.Describe(), g.services.Describe()}}
}
