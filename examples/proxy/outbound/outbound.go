// Package outbound is the path of the application's requests. The path begins with a
// connection of the application to the proxy and ends at the endpoint that serves the
// request. Read outbound.go from top to bottom: each function is the next part of the path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ route ─▶ split ┐
//	connection ─▶ original ─▶ profile ─▶ protocol┤                                  ├▶ queue ─▶ balancer ─▶ endpoint
//	              address                        └▶ opaque ───────────────▶ split ──┘
//
// A direct connection is made to an address of the proxy and not redirected, so it has no
// original address. Each request on it specifies its own target, by the header
// l5d-dst-override or by the authority or Host.
package outbound

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server of the connections that the application makes. Watches of the
// destination controller and connections to endpoints are closed when ctx ends.
func New(ctx context.Context, c Config) *Outbound {
	o := newOutbound(c)
	idle := layer.CachePolicy{IdleTimeout: max(c.DiscoveryIdle, 1)}
	untilClosed := layer.WithCompletion(tcplayer.UntilClosed)
	o.destinations = layer.NewCache(ctx, o.destination, idle)
	o.logicals = layer.NewCache(ctx, o.logical, idle)
	o.concretes = layer.NewCache(ctx, o.concrete, idle)
	o.forwards = layer.NewCache(ctx, o.forwarded, idle)
	o.opaqueConcretes = layer.NewCache(ctx, o.opaqueConcrete, idle, untilClosed)
	o.opaqueForwards = layer.NewCache(ctx, o.opaqueForwarded, idle, untilClosed)

	o.Requests = o.requests()
	o.http = o.server(o.Requests)
	o.Server = tcplayer.Transparent(o.Origin, o.redirected(), o.direct())
	return o
}

// redirected returns the server of connections that were redirected to the proxy. It
// chooses the service of a connection by its original destination.
func (o *Outbound) redirected() tcplayer.Server {
	return connections().
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.destinations.Router(originalDst))
}

// direct returns the server of connections that were made to an address of the proxy. They
// must speak HTTP, because only HTTP requests can specify a target.
func (o *Outbound) direct() tcplayer.Server {
	return connections().
		With("metrics", o.clients(netip.AddrPort{}).WrapServer).
		With("errors", tcplayer.OnError(o.countTCP)).
		Service(o.detect(o.http, nil, o.Meters.Detect(meters.Outbound, nil)))
}

// destination returns the server of the connections to one original destination. A
// connection is served as HTTP or as bytes. The choice depends on the profile of the
// address and on the protocol that the client uses.
func (o *Outbound) destination(ctx context.Context, dst netip.AddrPort) tcplayer.Server {
	profile := share(o.profiles)
	requests := o.router(ctx, dst.String(), profile)
	router := layer.Lazy(func() tcplayer.Service { return o.opaque(ctx, dst.String(), replay{profile}) })
	forward := connections().
		With("metrics", requests.counts.Forwarded).
		With("explain", tap.Explain[net.Conn, tcplayer.ByteCount](o.Taps))
	opaque := forward.Service(tcplayer.Forward(router))
	named := forward.Service(tcplayer.Forward(router, tcplayer.WithServerName(o.DetectTimeout)))
	return connections().
		With("metrics", o.clients(dst).WrapServer).
		Service(o.byProfile(dst, requests, opaque, named, o.detect(o.http, opaque, requests.counts.Detect())))
}

// server returns the server of connections that speak HTTP. Uploads have no minimum rate,
// because the application is trusted.
func (o *Outbound) server(requests httplayer.Service) tcplayer.Server {
	return httplayer.NewServer(
		httplayer.Handler(requests, httplayer.WithConnect(), httplayer.WithErrorHandler(nil),
			httplayer.WithErrorHeaders(!o.Quiet), httplayer.WithLogger(o.Log)),
		append(o.Config.Server.Options(),
			httplayer.WithMinBodyRate(0, 0), httplayer.WithDrainOnDone(o.Ending), httplayer.WithServerLogger(o.Log))...)
}

// requests returns the service that receives every request. It applies the layers for all
// requests. It then passes a request to the router of its connection, or to the router of
// the target that the request names.
func (o *Outbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](o.Taps)).
		With("errors", o.Meters.HTTPErrors(meters.Outbound)).
		Limit(o.MaxInFlight).
		Service(o.byConnection(o.logicals.Router(Target)))
}

// logical returns the router of target. It is for requests that name their target by
// l5d-dst-override, the authority or Host, and not by the address of their connection.
func (o *Outbound) logical(ctx context.Context, target Authority) httplayer.Service {
	return o.router(ctx, target.String(), o.profiles)
}

// router returns the service of the requests to target. The service applies the profile
// that source yields, and sets the header l5d-dst-canonical. It then applies the layers
// of the route: metrics, timeout, retry and header changes, see
// [profiles.WithRouteLayers]. Last, it picks one target of the split, or uses the
// endpoint that the profile specifies.
func (o *Outbound) router(ctx context.Context, target string, source profiles.Source) *router {
	r := &router{ctx: ctx, target: target, counts: o.Meters.Routes(meters.Outbound, target)}
	r.Router = profiles.New(ctx, target, source, httplayer.Accessor{}, r.backends(pin(r, o.concretes)),
		profiles.WithForward(r.forwards(pin(r, o.forwards))),
		profiles.WithBackends(r.policyBackends(pin(r, o.concretes), pin(r, o.forwards))),
		profiles.WithRouteLayers(httplayer.Replayer{}, httplayer.Editor{}, httplayer.Classify),
		r.metrics(),
		profiles.WithInitialWait[*http.Request, *http.Response](o.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](o.Log))
	return r
}

// concrete returns the service of one target of a split. It balances requests over the
// endpoints of the target. If the target is an address, this address is the only endpoint.
// Requests wait in a queue in front of the endpoints.
func (o *Outbound) concrete(ctx context.Context, key balancerKey) httplayer.Service {
	target := key.authority
	balancer, queue := o.Meters.Balancer(ctx, "http", target, key.parent)
	stack := httplayer.NewStack(layer.WithTarget[*http.Response](target), layer.WithMetrics[*http.Response](queue)).
		Queue(key.queue(o.HTTPQueue))
	if t, ok := literalTarget(target); ok {
		return stack.Service(o.single(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, atFirstCall(key.withBreaker(o.endpoint)),
		balance.WithPolicy[*http.Response](key.policy()),
		balance.WithClassifier(key.classifier()), balance.WithMetrics[*http.Response](balancer)))
}

// forwarded returns the service of the single endpoint that the profile of a target
// specifies.
func (o *Outbound) forwarded(ctx context.Context, f forwardTarget) httplayer.Service {
	return httplayer.NewStack(layer.WithTarget[*http.Response](f.target)).
		Queue(o.HTTPQueue.Capacity, o.HTTPQueue.MaxWait()).
		Service(o.single(ctx, f.discovered()))
}

// endpoint returns a service that sends requests to the endpoint of t, one of the endpoints
// of a balancer.
func (o *Outbound) endpoint(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.endpointStack(ctx, p, false).Service(o.client(ctx, p, balanced))
}

// single returns the service of the only endpoint of a target.
func (o *Outbound) single(ctx context.Context, t discover.Target) httplayer.Service {
	p := o.peer(t)
	return o.endpointStack(ctx, p, true).Service(o.client(ctx, p, httplayer.SingleEndpoint))
}

// endpointStack returns the layers of the requests to one endpoint, without the HTTP
// client. For a target with a single endpoint, only is true. If this endpoint is reached by
// TLS, a response with l5d-proxy-connection: close also closes the connection of the
// client.
func (o *Outbound) endpointStack(
	ctx context.Context, p peer, only bool,
) layer.Stack[*http.Request, *http.Response] {
	s := httplayer.NewStack()
	if p.authority != "" {
		s = s.With("authority", httplayer.OverrideAuthority(p.authority))
	}
	return s.With("require-id", httplayer.RequireID(p.identity)).
		With("metrics", o.Meters.Endpoint(ctx, meters.Outbound, p.labels)).
		With("tap", tap.Layer(o.Taps, httplayer.Accessor{}, p.tapOptions...)).
		With("override", httplayer.StripHeader(overrideHeader, origProtoHeader)).
		With("proxy-errors", httplayer.ProxyErrors(o.Log, only && p.tls != nil))
}

// client returns a service that sends requests to the endpoint p. The callback as converts
// each HTTP client to a service. If the transport header contains the protocol, one client
// sends HTTP/1 and another sends HTTP/2. Otherwise a single client sends all requests, and keeps
// the HTTP version of each.
func (o *Outbound) client(ctx context.Context, p peer, as func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	newClient := func(p peer, version ...httplayer.EndpointOption) httplayer.Service {
		opts := append(o.Connect.Requests(o.dial(p), o.Pool), version...)
		opts = append(opts, httplayer.WithPing(p.Endpoint.PingInterval, p.Endpoint.PingTimeout))
		return as(httplayer.NewEndpoint(ctx, p.Endpoint.Addr.String(), opts...))
	}
	if p.announcesProtocol() {
		return &byVersion{
			h1: version{svc: newClient(p.withProtocol(tcplayer.HTTP1), httplayer.WithHTTP1())},
			h2: version{svc: newClient(p.withProtocol(tcplayer.HTTP2), httplayer.WithHTTP2())},
		}
	}
	return newClient(p, httplayer.WithKeepVersion())
}

// opaque returns the service of the connections to target that are forwarded as bytes.
// For each connection, it picks a target of the split and an endpoint. source yields the
// profile with the split.
func (o *Outbound) opaque(ctx context.Context, target string, source profiles.Source) tcplayer.Service {
	forward := func(e *profiles.Endpoint) tcplayer.Service { return o.opaqueForwards.Service(forwardTarget{target, e}) }
	var parent meters.Parent // of the current profile; a Router calls one function at a time
	balance := func(authority string) tcplayer.Service {
		return o.opaqueConcretes.Service(balancerKey{authority: authority, parent: parent})
	}
	return profiles.New(ctx, target, source, tcplayer.Accessor{}, balance,
		profiles.WithForward(forward),
		profiles.WithBackends(func(b *profiles.Backend) tcplayer.Service {
			if b.Endpoint != nil {
				return forward(b.Endpoint)
			}
			return o.opaqueConcretes.Service(balancerOf(b, parent))
		}),
		profiles.WithOnUpdate[tcplayer.Request, net.Conn](func(p *profiles.Profile) {
			parent = o.Meters.Parent(cmp.Or(canonicalName(p, target), target), p)
		}),
		profiles.WithInitialWait[tcplayer.Request, net.Conn](o.Control.ProfileInitial),
		profiles.WithLogger[tcplayer.Request, net.Conn](o.Log))
}

// opaqueConcrete returns the service that balances opaque connections over the endpoints of
// one target of a split. For the balancer, a connection is in flight only until it is
// established.
func (o *Outbound) opaqueConcrete(ctx context.Context, key balancerKey) tcplayer.Service {
	target := key.authority
	balancer, queue := o.Meters.Balancer(ctx, "tcp", target, key.parent)
	stack := tcplayer.NewStack(layer.WithTarget[net.Conn](target), layer.WithMetrics[net.Conn](queue)).
		Queue(key.queue(o.TCPQueue))
	if t, ok := literalTarget(target); ok {
		return stack.Service(o.opaqueEndpoint(ctx, t))
	}
	return stack.Service(balance.Resolve(ctx, o.resolver, target, atFirstCall(o.opaqueEndpoint),
		balance.WithPolicy[net.Conn](key.policy()),
		balance.WithCompletion(layer.AtReturn[net.Conn]), balance.WithMetrics[net.Conn](balancer)))
}

// opaqueForwarded returns a service that connects to the endpoint of f for each opaque
// connection. This endpoint is the only one that the profile of the target specifies.
func (o *Outbound) opaqueForwarded(ctx context.Context, f forwardTarget) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](f.target)).
		Queue(o.TCPQueue.Capacity, o.TCPQueue.MaxWait()).
		Service(o.opaqueEndpoint(ctx, f.discovered()))
}

// opaqueEndpoint returns a service that connects to the endpoint of t for each opaque
// connection. It also shows these connections in tap.
func (o *Outbound) opaqueEndpoint(ctx context.Context, t discover.Target) tcplayer.Service {
	p := o.peer(t)
	return tcplayer.NewStack().
		With("tap", tap.Connections(o.Taps, p.tapOptions...)).
		Service(tcplayer.NewEndpoint(ctx, t.Endpoint.Addr.String(), o.Connect.Bytes(o.dial(p))...))
}
