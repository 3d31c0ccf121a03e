package main

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/instrument/promtower"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// gateway is the state that all listeners share. A request takes this path through its parts:
//
//	listener ─▶ access log ─▶ route ─▶ CORS, authentication, rate limit of a client    routes.go
//	                            │
//	                            ▼ limits, mirrors, timeout, faults, retry, hedge       package profiles
//	                          split ─▶ service: queue ─▶ balancer ─▶ endpoint          services.go
//
// A new configuration replaces all routes at the same time. Requests that have already been
// routed keep their route until they end. A route keeps its state, such as rate limits, until its
// own configuration or that of one of its services changes. A service keeps its connections until
// its [config.Service.Version] changes.
type gateway struct {
	log       *slog.Logger
	tap       *tap.Registry
	registry  *registry
	metrics   *promtower.Metrics // metrics in registry
	responses *responses         // counts all responses, in registry
	limits    limits             // counts rateLimitService's decisions, in registry
	ended     *connections       // counts TCP routes' connections, in registry
	state     *state             // metrics about the gateway itself, in registry
	tracing   *tracing           // nil if requests are not traced
	acme      challenges         // the listeners' ACME challenges
	services  *layer.Cache[*upstream, *http.Request, *http.Response]
	tcp       *layer.Cache[*upstream, tcplayer.Request, net.Conn] // for TCP routes
	static    *profiles.Static                                    // the configuration's routes; nil if another source provides the routes
	router    *profiles.Router[*http.Request, *http.Response]

	loading  sync.Mutex                // held by load
	measured map[config.Name]*upstream // services that may have series; for deleteSeries
	current  atomic.Pointer[generation]
}

// generation is a loaded configuration with its state. Each load creates one.
type generation struct {
	*config.Config

	services map[config.Name]*upstream // the values are the keys of gateway.services
	routes   map[config.Name]*route
	tcp      []tcpRoute // in the order of TCPRoutes
	profile  *profiles.Profile
	release  context.CancelFunc // lets a service close a minute after its last request
}

// target is the target of the only profile of the gateway, which has all routes. A service cannot have
// this name, because it has a port.
const target = "gateway:1"

// newGateway returns a gateway with the configuration c. Its routes are those that source provides for
// [target], or those of c if source is nil. Their backends are the services of c. The gateway's background
// work stops when ctx ends.
func newGateway(ctx context.Context, c *config.Config, source profiles.Source, log *slog.Logger) (*gateway, error) {
	g := &gateway{log: log, tap: tap.NewRegistry(), registry: &registry{Registry: prometheus.NewRegistry()}}
	// All of these register their metrics in g.registry.
	g.responses = newResponses(g.registry, log)
	g.state = newState(g.registry, g.current.Load)
	g.limits = newLimits(g.registry, g.log)
	g.ended = newConnections(g.registry, &g.loading, g.current.Load)
	g.metrics = promtower.New(g.registry)
	g.tracing = newTracing(c.Tracing, g.registry, log)
	// A service closes a minute after its last request, once no generation pins it any more.
	g.services = layer.NewCache(ctx, g.newService, layer.CachePolicy{IdleTimeout: time.Minute}, layer.WithCompletion(httplayer.Completion))
	g.tcp = layer.NewCache(ctx, g.newTCPService, layer.CachePolicy{IdleTimeout: time.Minute}, layer.WithCompletion(tcplayer.UntilClosed))
	// Tests and other programs may provide the routes from elsewhere.
	if source == nil {
		g.static = new(profiles.Static)
		source = g.static
	}
	// load compares with the current generation, so there must be one from the beginning.
	g.current.Store(&generation{Config: &config.Config{}, release: func() {}})
	if err := g.load(ctx, c); err != nil {
		return nil, err
	}
	// For each profile, the router calls newRoute and newBackend to make the services of its routes.
	g.router = profiles.New(ctx, profiles.Config{
		Target: target, Source: source,
		InitialWait:  time.Minute, // the profile of the configuration is there already
		RetryByClass: true,        // as httpclient does
		LazyRoutes:   true,        // a file may have thousands of routes
		Metrics:      g.routeMetrics, OnUpdate: g.deleteSeries, Log: log,
	}, accessor{}, g.named,
		profiles.WithRouteLayers(httplayer.HTTP{}), profiles.WithPerRoute(g.newRoute), profiles.WithBackends(g.newBackend))
	return g, nil
}

// service returns the service for a listener's requests: the layers that c, the listener's configuration,
// asks for, and below them the router. A layer that is nil is left out by With.
func (g *gateway) service(c *config.Listener) httplayer.Service {
	var trailers httplayer.Layer
	if !c.KeepRequestTrailers {
		trailers = httplayer.DropRequestTrailers()
	}
	var compress httplayer.Layer
	if z := c.Compression; z != nil {
		compress = httplayer.Compress(httplayer.CompressPolicy{MinBytes: z.MinBytes, ContentTypes: z.ContentTypes})
	}
	// ACME servers connect without TLS.
	var acmeLayer httplayer.Layer
	if c.TLS == nil {
		acmeLayer = g.acme.layer()
	}
	st := httplayer.NewStack().
		With("trace_context", g.tracing.begin()).
		With("compress", compress).
		With("trailers", trailers)
	st = withClient(st, c).
		With("acme_challenge", acmeLayer).
		With("normal_path", g.normalPath(&c.Path)).
		With("trace", g.tracing.request())
	return g.withAccess(st, &c.Access).Service(g.router)
}

// withClient returns st with the layers that determine a client's address, certificate and scheme. For a client
// behind one of the listener's trusted proxies, they take these from the headers that the proxy has set.
func withClient(st httplayer.Stack, c *config.Listener) httplayer.Stack {
	trusted := make([]netip.Prefix, 0, len(c.TrustedProxies))
	for _, p := range c.TrustedProxies {
		trusted = append(trusted, p.Prefix)
	}
	var certificate httplayer.Layer // With ignores nil
	// Without client validation, there is no verified certificate to forward.
	if c.TLS != nil && c.TLS.ClientValidation != nil {
		switch c.TLS.ClientValidation.ForwardCertificate {
		case "Certificate":
			certificate = httplayer.ForwardClientCertificate(httplayer.CertificateOnly, trusted...)
		case "Chain":
			certificate = httplayer.ForwardClientCertificate(httplayer.CertificateWithChain, trusted...)
		}
	}
	return st.
		With("forwarded", httplayer.Forwarded(trusted...)).
		With("client_certificate", certificate).
		With("scheme", layer.MapRequest[*http.Request, *http.Response](func(req *http.Request) *http.Request {
			return clientScheme(originForm(req))
		}))
}

// originForm returns req with a path as its target if the client has sent an absolute one, as to a forward proxy.
// Many services do not expect that, and nginx and ReverseProxy do not send it.
func originForm(req *http.Request) *http.Request {
	if strings.HasPrefix(req.RequestURI, "/") || !strings.Contains(req.RequestURI, "://") {
		return req
	}
	out := *req
	out.RequestURI = req.URL.RequestURI()
	return &out
}

// clientScheme returns req with the scheme that a trusted proxy's client used. For other clients,
// the layer "forwarded" has already removed X-Forwarded-Proto.
func clientScheme(req *http.Request) *http.Request {
	scheme := req.Header.Get("X-Forwarded-Proto")
	if scheme == req.URL.Scheme || scheme != "http" && scheme != "https" {
		return req
	}
	// Copy the request and its URL, because the caller still owns them.
	copied := *req
	u := *req.URL
	u.Scheme = scheme
	copied.URL = &u
	return &copied
}

// load makes c the configuration for new requests. Services that c does not contain are closed
// one minute after their last request.
func (g *gateway) load(ctx context.Context, c *config.Config) error {
	g.loading.Lock()
	defer g.loading.Unlock()
	// Services and routes that did not change are taken over, with their connections and state.
	previous := g.current.Load()
	next := &generation{
		Config: c, profile: c.Profile(),
		services: make(map[config.Name]*upstream, len(c.Services)), routes: make(map[config.Name]*route, len(c.Routes)),
		tcp: make([]tcpRoute, 0, len(c.TCPRoutes)),
	}
	for i := range c.TCPRoutes {
		next.tcp = append(next.tcp, tcpRoute{&c.TCPRoutes[i], c.TCPRoutes[i].ProfileRoute()})
	}
	for i := range c.Services {
		s := &c.Services[i]
		// keeps accepts a nil old, for a service that is new.
		if old := previous.services[s.Name]; old.keeps(s) {
			next.services[s.Name] = old
		} else {
			next.services[s.Name] = newUpstream(s, g.log)
		}
	}
	for i := range c.Routes {
		r := previous.routes[c.Routes[i].Name]
		if r.keeps(&c.Routes[i], next.services) {
			next.profile.Routes[i] = r.Profile() // with the same pointers, so that the router compares it faster
		} else {
			r = routeOf(&c.Routes[i], next.services)
		}
		next.routes[r.Name] = r
		next.profile.Routes[i].Value = r
		next.profile.Routes[i].Backends = r.shares
	}
	// Pin the services before the previous generation releases its own. Those in both then stay open.
	var pinned context.Context
	pinned, next.release = context.WithCancel(ctx)
	for name, s := range next.services {
		if err := g.pin(pinned, c, name, s); err != nil {
			next.release()
			return err
		}
	}
	// From here on, nothing can fail, so services that stay get their new settings.
	for i := range c.Services {
		next.services[c.Services[i].Name].update(&c.Services[i])
	}
	// Services of the new generation must be current before the profile refers to them.
	g.current.Store(next)
	if g.static != nil {
		g.static.Set(target, next.profile)
	}
	// The previous generation's services close, unless the new one has pinned them.
	previous.release()
	return nil
}

// pin keeps s in the caches of services until ctx ends.
func (g *gateway) pin(ctx context.Context, c *config.Config, name config.Name, s *upstream) error {
	if c.InTCPRoutes(name) {
		if err := g.tcp.Pin(ctx, s); err != nil {
			return err
		}
	}
	// A service that only TCP routes use needs no HTTP side.
	if c.OnlyTCP(name) {
		return nil
	}
	return g.services.Pin(ctx, s)
}

// isLoaded reports whether the router uses the routes of the current configuration, which it receives shortly
// after load. If another source provides the routes, requests wait for them.
func (g *gateway) isLoaded() bool {
	return g.static == nil || g.router.Profile() == g.current.Load().profile
}

// named returns a service that sends requests to the configured service with the name authority. Requests
// to [target] itself match no route.
func (g *gateway) named(authority string) httplayer.Service {
	if authority == target {
		return noRoute()
	}
	name := config.Name(authority)
	// Look up the service for each request, because a new generation may replace it.
	return layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		s := g.current.Load().services[name]
		if s == nil {
			return nil, &layer.Error{Layer: "gateway", Target: string(name), Kind: layer.ErrNoRoute}
		}
		return g.services.Service(s).Call(ctx, req)
	})
}

// listenerKey is the context key for the listener's name, which connections and requests carry.
type listenerKey struct{}

// accessor reads the properties of requests for the conditions of routes. It is
// httplayer.HTTP with the additional request header [config.ListenerHeader]. The value
// of the header is the name of the listener, so that a route can have a condition on it.
type accessor struct{ httplayer.HTTP }

// Source returns the client's address as the [httplayer.Forwarded] layer has determined it, which looks
// past the listener's trusted proxies. The port is then 0, because the layer does not know it. Without
// such a layer, Source returns the address of the connection's peer.
func (a accessor) Source(r *http.Request) netip.AddrPort {
	// A valid address comes from a layer that has looked past trusted proxies.
	if client := httplayer.ClientFromContext(r.Context()); client.IsValid() {
		return netip.AddrPortFrom(client, 0)
	}
	return a.HTTP.Source(r)
}

// RequestHeader returns the request's header fields. Get and Values also find [config.ListenerHeader].
func (accessor) RequestHeader(r *http.Request) layer.Header { return (*requestHeader)(r) }

// requestHeader reads the header fields of a request, as [accessor] describes.
type requestHeader http.Request

func (h *requestHeader) header() layer.Header {
	return httplayer.HTTP{}.RequestHeader((*http.Request)(h))
}

// Get returns the header field's value. config.ListenerHeader is not a real field, but the name of the listener.
func (h *requestHeader) Get(name string) string {
	if name == config.ListenerHeader {
		listener, _ := (*http.Request)(h).Context().Value(listenerKey{}).(string)
		return listener
	}
	return h.header().Get(name)
}

// Values returns all values of the header field. See Get for the name of the listener.
func (h *requestHeader) Values(name string) []string {
	if name == config.ListenerHeader {
		return []string{h.Get(name)}
	}
	return h.Header.Values(name)
}

func (h *requestHeader) All() iter.Seq2[string, string] { return h.header().All() }

// describe returns the current routes and services as a tree, for the admin page.
func (g *gateway) describe() layer.Node {
	return layer.Node{Name: "gateway", Children: []layer.Node{g.router.Describe(), g.services.Describe(), g.tcp.Describe()}}
}
