// Package outbound is the path of the application's requests, from the application's connection to
// the endpoint that serves a request. Read outbound.go from top to bottom: each function is the
// next part of the path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ route ─▶ split ┐
//	connection ─▶ original ─▶ profile ─▶ protocol┤                                  ├▶ queue ─▶ balancer ─▶ endpoint
//	              address                        └▶ opaque ───────────────▶ split ──┘
//
// A direct connection is made to the proxy's own address, so it has no original address. Each
// request on it names its target with the header l5d-dst-override, the authority or Host.
package outbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/traces"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server for the application's connections. When ctx ends, it stops watching the
// destination controller and closes its connections to endpoints.
func New(ctx context.Context, c Config) *Outbound {
	o := newOutbound(c)
	idle := layer.CachePolicy{IdleTimeout: max(c.DiscoveryIdle, 1)} // 0 would select the default
	untilClosed := layer.WithCompletion(tcplayer.UntilClosed)
	o.destinations = layer.NewCache(ctx, o.destination, idle)
	o.logicals = layer.NewCache(ctx, o.logical, idle)
	o.concretes = layer.NewCache(ctx, o.concrete, idle)
	o.forwards = layer.NewCache(ctx, o.forwarded, idle)
	o.opaqueConcretes = layer.NewCache(ctx, o.opaqueConcrete, idle, untilClosed)
	o.opaqueForwards = layer.NewCache(ctx, o.opaqueForwarded, idle, untilClosed)
	o.opaqueNames = layer.NewCache(ctx, o.opaqueNamed, idle, untilClosed)

	o.Requests = o.requests()
	o.http = o.server(o.Requests)
	o.Server = tcplayer.Transparent(o.Origin, o.redirected(), o.direct())
	return o
}

// redirected returns the server for connections that were redirected to the proxy. Their original
// destination selects the service.
func (o *Outbound) redirected() tcplayer.Server {
	return connections().
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.destinations.Router(originalDst))
}

// direct returns the server for connections to the proxy's own address. They must speak HTTP,
// because only HTTP requests can name a target.
func (o *Outbound) direct() tcplayer.Server {
	return connections().
		With("metrics", o.clients(netip.AddrPort{}).WrapServer).
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.detect(o.http, nil, o.Meters.Detect(meters.Outbound, nil)))
}

// destination returns the server for connections to one original destination. The address's profile
// and the client's protocol decide whether a connection is served as HTTP or as bytes.
func (o *Outbound) destination(ctx context.Context, dst netip.AddrPort) tcplayer.Server {
	// Two routers need the address's profile: one for requests, one for bytes. They share one watch.
	profile := share(o.Profiles)
	requests := o.router(ctx, dst.String(), profile)
	counts := meters.Connections(requests.counts)
	// Most addresses only serve HTTP, so the router for bytes is made when the first opaque connection needs it.
	router := layer.Lazy(func() tcplayer.Service { return o.opaque(ctx, dst.String(), replay{profile}) })
	forward := connections().
		With("metrics", counts.Forwarded).
		With("explain", tap.ExplainConnections(o.Taps))
	opaque := forward.Service(tcplayer.Forward(router))
	// named reads the server name in the client's TLS handshake before it picks a target.
	named := forward.Service(tcplayer.Forward(router, tcplayer.WithServerName(o.DetectTimeout)))
	return connections().
		With("metrics", o.clients(dst).WrapServer).
		Service(o.byProfile(dst, requests, opaque, named, o.detect(o.http, opaque, counts.Detect())))
}

// server returns the server for HTTP connections. Its error responses have no body; header fields contain
// the text of the error, as in linkerd. It sets no minimum rate for uploads, because the application is
// trusted.
func (o *Outbound) server(requests httplayer.Service) tcplayer.Server {
	return httplayer.NewServer(requests, append(o.Config.Server.Options(),
		httplayer.WithConnect(), httplayer.WithErrorHandler(nil), mesh.WithErrorHeaders(!o.Quiet),
		httplayer.WithCloseOnError(true), httplayer.WithLogger(o.Log),
		httplayer.WithRefused(o.Meters.HTTPRefused(meters.Outbound)),
		httplayer.WithMinBodyRate(0, 0), httplayer.WithDrainOnDone(o.Ending))...)
}

// requests returns the service that receives every request. After the layers that all requests
// share, it passes a request to its connection's router, or to the router for the target that the
// request names.
func (o *Outbound) requests() httplayer.Service {
	// A request counts as ended, for example for Limit, when its response header has arrived. Its body may take
	// long.
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("trace", traces.Server(o.Spans, meters.Outbound)).
		With("explain", tap.Explain(o.Taps, httplayer.HTTP{})).
		With("errors", o.Meters.HTTPErrors(meters.Outbound, nil)).
		Limit(o.MaxInFlight).
		Service(o.byConnection(o.logicals.Router(Target)))
}

// logical returns the router for target, which requests name with l5d-dst-override, the authority
// or Host.
func (o *Outbound) logical(ctx context.Context, target Authority) httplayer.Service {
	return o.router(ctx, target.String(), o.Profiles)
}

// router returns the service for requests to target. It follows the profile from source and sets
// the header l5d-dst-canonical. The route's layers add metrics, a timeout, retries and header
// changes, see [profiles.WithRouteLayers]. Then it picks one target of the split, or the endpoint
// that the profile specifies.
func (o *Outbound) router(ctx context.Context, target string, source profiles.Source) *router {
	values := o.profileSource(target, source, &o.balanced)
	// profiles.New calls the functions below for each new profile, to make the services that its routes need.
	return &router{source: values, Router: profiles.New(ctx, profiles.Config{
		Target: target, Source: values, InitialWait: o.Control.ProfileInitial, Log: o.Log,
		Metrics: func(route profiles.Route) (requests, attempts layer.Instruments) {
			return countsOf(route).Measured(route)
		},
	}, httplayer.HTTP{}, func(authority string) httplayer.Service { return values.backend(ctx, backendAt(authority)) },
		profiles.WithBackends(values.backend),
		profiles.WithRouteLayers(httplayer.HTTP{}),
		profiles.WithPerRoute(func(route profiles.Route, next httplayer.Service) httplayer.Service {
			return countsOf(route).Layer(route, next)
		}),
		profiles.WithDefaultRoute(func(p *profiles.Profile, next httplayer.Service) httplayer.Service {
			return values.of(p.Value).Unrouted(next)
		}))}
}

// concrete returns the service for one target of a split. Requests wait in a queue and are then
// balanced over the target's endpoints. If the target is an address, that is the only endpoint.
func (o *Outbound) concrete(ctx context.Context, b *backend) httplayer.Service {
	// The queue and the balancer share the labels of the target.
	instruments, queue := o.Meters.Balancer(ctx, "http", b.authority, b.parent)
	stack := httplayer.NewStack().WithTarget(b.authority).WithMetrics(queue)
	if t, ok := literalTarget(b.authority); ok {
		return queued(b, o.HTTPQueue, stack, o.single(ctx, t))
	}
	balancer := balance.Resolve(ctx, o.Resolver, balance.Config{Target: b.authority, Metrics: instruments},
		atFirstCall(b.withBreaker(o.endpoint)), balance.WithClassifier(b.classify))
	b.follow(ctx, balancer, o.Log)
	return queued(b, o.HTTPQueue, stack, balancer)
}

// forwarded returns the service for requests to f's endpoint. No balancer is needed, because a
// profile specifies this single endpoint.
func (o *Outbound) forwarded(ctx context.Context, f forwardTarget) httplayer.Service {
	return httplayer.NewStack().WithTarget(f.target).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait()).
		Service(o.single(ctx, f.discovered()))
}

// Whether an endpoint is one of several in a balancer, or its target's only one.
const (
	inBalancer   = false
	onlyEndpoint = true
)

// endpoint returns the service for t's endpoint, one of several in a balancer.
func (o *Outbound) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.endpointStack(ctx, p, inBalancer).Service(o.client(ctx, p, balanced))
}

// single returns the service for a target's only endpoint.
func (o *Outbound) single(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.endpointStack(ctx, p, onlyEndpoint).Service(o.client(ctx, p, httplayer.SingleEndpoint))
}

// endpointStack returns the layers for requests to one endpoint, except for the HTTP client. single
// tells that the target has no other endpoint. If such an endpoint is reached with TLS, its proxy
// speaks for the whole target, so a response with l5d-proxy-connection: close also closes the
// client's connection.
func (o *Outbound) endpointStack(
	ctx context.Context, p peer, single bool,
) layer.Stack[*http.Request, *http.Response] {
	// The order is that of linkerd's proxy: layers that are further down see the request later.
	s := httplayer.NewStack()
	headers := []string{overrideHeader, origProtoHeader}
	if p.authority != "" {
		s = s.With("authority", httplayer.OverrideAuthority(p.authority))
		headers = append(headers, canonicalHeader) // it names a service of this cluster
	}
	return s.With("require-id", mesh.RequireID(p.identity)).
		With("trace", traces.Client(o.Spans, meters.Outbound)).
		With("metrics", o.Meters.Endpoint(ctx, meters.Outbound, p.labels)).
		With("tap", tap.Layer(o.Taps, httplayer.HTTP{}, p.tapOptions...)).
		With("override", httplayer.StripHeader(headers...)).
		With("proxy-errors", mesh.ProxyErrors(o.Log, single && p.tls != nil))
}

// client returns a service that sends requests to p and keeps their HTTP version, unless p carries
// HTTP/1 over HTTP/2. convert converts each HTTP client to a service.
func (o *Outbound) client(ctx context.Context, p peer, convert func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	svc := o.versions(ctx, p, convert)
	if p.upgrades {
		svc = mesh.UpgradeOrigProto()(svc)
	}
	return svc
}

// versions returns a service that sends requests to p in their own HTTP version. It is the part of
// the method client below the upgrade of HTTP/1 to HTTP/2. If the transport header announces the
// protocol of a connection, each HTTP version needs connections of its own, and so its own HTTP
// client. Otherwise a single HTTP client sends all requests.
func (o *Outbound) versions(ctx context.Context, p peer, convert func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	// newClient makes one HTTP client. The option version restricts it to one HTTP version.
	newClient := func(p peer, version ...httplayer.EndpointOption) httplayer.Service {
		opts := append(o.Connect.Requests(o.dial(p), o.Pool), version...)
		opts = append(opts, httplayer.WithPing(p.Endpoint.PingInterval, p.Endpoint.PingTimeout))
		if p.Endpoint.PingWhileIdle {
			opts = append(opts, httplayer.WithPingWhileIdle())
		}
		return convert(httplayer.NewEndpoint(ctx, p.Endpoint.Addr.String(), opts...))
	}
	if p.announcesProtocol() {
		return &byVersion{
			h1: version{svc: newClient(p.withProtocol(tcplayer.HTTP1), httplayer.WithHTTP1())},
			h2: version{svc: newClient(p.withProtocol(tcplayer.HTTP2), httplayer.WithHTTP2())},
		}
	}
	return newClient(p, httplayer.WithKeepVersion())
}

// opaque returns the service for connections to target that are forwarded as bytes. For each of
// them, it picks a target of the split in source's profile, and an endpoint.
func (o *Outbound) opaque(ctx context.Context, target string, source profiles.Source) tcplayer.Service {
	values := o.profileSource(target, source, &o.opaqueBalanced)
	// Services come from caches, so that routers for several targets share them.
	backend := func(_ context.Context, b *profiles.Backend) tcplayer.Service {
		// A backend with an endpoint of its own needs no balancer.
		if b.Endpoint != nil {
			return o.opaqueForwards.Service(forwardTarget{target, b.Endpoint})
		}
		return o.opaqueConcretes.Service(o.opaqueBalanced.get(backendKey{b.Authority, values.of(b.Value).Parent(), b.Balancing}))
	}
	return profiles.New(ctx, profiles.Config{
		Target: target, Source: values, InitialWait: o.Control.ProfileInitial, Log: o.Log,
	}, tcplayer.Bytes{}, func(authority string) tcplayer.Service { return backend(ctx, backendAt(authority)) },
		profiles.WithBackends(backend))
}

// opaqueConcrete returns the service that balances opaque connections over the endpoints of one
// target. The balancer counts a connection as in flight only until it is established.
func (o *Outbound) opaqueConcrete(ctx context.Context, b *backend) tcplayer.Service {
	instruments, queue := o.Meters.Balancer(ctx, "tcp", b.authority, b.parent)
	stack := tcplayer.NewStack().WithTarget(b.authority).WithMetrics(queue)
	if t, ok := literalTarget(b.authority); ok {
		return queued(b, o.TCPQueue, stack, o.opaqueEndpoint(ctx, t))
	}
	balancer := balance.Resolve(ctx, o.Resolver, balance.Config{Target: b.authority, Metrics: instruments},
		atFirstCall(o.opaqueEndpoint), balance.WithCompletion(layer.AtReturn[net.Conn]))
	b.follow(ctx, balancer, o.Log)
	return queued(b, o.TCPQueue, stack, balancer)
}

// opaqueForwarded returns the service for opaque connections to f's endpoint. Like forwarded, it
// needs no balancer.
func (o *Outbound) opaqueForwarded(ctx context.Context, f forwardTarget) tcplayer.Service {
	return tcplayer.NewStack().WithTarget(f.target).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait()).
		Service(o.opaqueEndpoint(ctx, f.discovered()))
}

// opaqueEndpoint returns a service that connects to t's endpoint and shows the connections in tap.
func (o *Outbound) opaqueEndpoint(ctx context.Context, t discover.Target) tcplayer.Service {
	p := o.peer(t)
	return tcplayer.NewStack().
		With("tap", tap.Connections(o.Taps, p.tapOptions...)).
		Service(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), o.Connect.Bytes(o.dial(p))...))
}
