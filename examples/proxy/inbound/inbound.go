// Package inbound is the path of requests to the application, from a client's connection to a port
// of the application. Read inbound.go from top to bottom: each function is the next part of the
// path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ orig-proto ─▶ client id ─▶ policy ─▶ name ─▶ queue ┐
//	connection ─▶ original ─▶ TLS for ─▶ protocol┤                                                                      ├▶ application
//	              address     our name           └▶ opaque ─▶ policy ──────────────────────────────────────────────────┘
//
// A direct connection is made to the proxy's own address. It must come from another proxy with an
// identity, and its transport header contains the application's port.
package inbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/examples/proxy/traces"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server for connections to the application. When ctx ends, it closes its
// connections to the application and stops watching profiles.
func New(ctx context.Context, c Config) *Inbound {
	in := newInbound(c)
	idle := max(c.DiscoveryIdle, 1) // 0 means to drop unused services at once, but selects the default in a CachePolicy
	in.logicals = newCache(ctx, in.logical, idle)
	in.endpoints = newCache(ctx, in.endpoint, idle)
	in.ports = newCache(ctx, in.port, idle, layer.WithCompletion(tcplayer.UntilClosed))

	in.policies = newPolicies(ctx, in)

	// From the application to the client: redirected and direct use in.http and in.opaque.
	in.Requests = in.requests()
	in.http = &byClient{Server: in.unmeshedServer(in.Requests), meshed: in.meshedServer(in.Requests)}
	in.opaque = in.forward()
	in.Server = tcplayer.Transparent(in.Origin, in.redirected(), in.direct())
	return in
}

// redirected returns the server for connections that were redirected to the proxy. It terminates
// TLS for the proxy's server name, and then detects the protocol. For connections that the policy
// marks as opaque, it does neither.
func (in *Inbound) redirected() tcplayer.Server {
	metrics := in.detectMetrics()
	// A policy may change the time limit for the detection, so the server is built by a function.
	detect := func(timeout time.Duration) tcplayer.Server {
		return tcplayer.Detect(tcplayer.Protocols{HTTP1: in.http, HTTP2: in.http, Opaque: in.opaque},
			tcplayer.WithDetectTimeout(timeout), tcplayer.WithSkipDetect(in.isOpaque), tcplayer.WithDetectLogger(in.Log), metrics)
	}
	detected := connections().
		With("metrics", in.clientMetrics(false)).
		Service(&byProtocol{Server: detect(in.DetectTimeout), withTimeout: detect, http: in.http, opaque: in.opaque})
	// TLS for other names is passed to the application as it is.
	passthrough := connections().
		With("metrics", in.clientMetrics(true)).
		Service(in.opaque)
	// Errors are counted outside of all other layers, so that rejections count too.
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		With("own addresses", layer.Filter[net.Conn, tcplayer.ByteCount](in.isOwn)).
		With("policy", in.withPolicy).
		Service(in.terminate(tcplayer.TLSServers{Terminate: detected, Passthrough: passthrough, Cleartext: detected}))
}

// terminate returns a server that terminates TLS for the proxy's server name, and passes on
// connections to one of servers. Without an identity, it cannot terminate TLS and returns
// servers.Cleartext.
func (in *Inbound) terminate(servers tcplayer.TLSServers) tcplayer.Server {
	if in.Identity == nil {
		return servers.Cleartext
	}
	return tcplayer.DetectTLS(in.Identity.Server(), tcplayer.MatchServerName(in.ServerName), servers,
		tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque), tcplayer.WithDetectLogger(in.Log))
}

// direct returns the server for connections that other proxies make to this proxy's own address. It
// forwards each to the port in its transport header. Without an identity, it returns nil, and all
// such connections are reset.
func (in *Inbound) direct() tcplayer.Server {
	if in.Identity == nil {
		return nil
	}
	// Only proxies with an identity may connect directly. They send a transport header first, which tells the port.
	meshed := connections().
		With("meshed", layer.Filter[net.Conn, tcplayer.ByteCount](isMeshed)).
		Service(tcplayer.DetectTransport(tcplayer.TransportServers{Header: in.byHeader()},
			tcplayer.WithDetectTimeout(in.DetectTimeout)))
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		Service(tcplayer.DetectTLS(in.Identity.Server(tcplayer.TransportProtocol), tcplayer.MatchServerName(in.ServerName),
			tcplayer.TLSServers{Terminate: meshed}, tcplayer.WithDetectTimeout(in.DetectTimeout)))
}

// forward returns the server for opaque connections. It forwards their bytes to the original
// destination if the policy permits it.
func (in *Inbound) forward() tcplayer.Server {
	return connections().
		With("explain", tap.ExplainConnections(in.Taps)).
		With("policy", in.admission).
		Service(tcplayer.Forward(in.ports.Router(serverPort)))
}

// port returns a service that connects to dst, a port of the application, for each opaque
// connection, and shows the connections in tap.
func (in *Inbound) port(ctx context.Context, dst netip.AddrPort) tcplayer.Service {
	return tcplayer.NewStack().WithTarget(dst.String()).
		With("tap", in.tapConnections(dst)).
		Service(tcplayer.NewEndpoint(ctx, dst.String(), in.Connect.Bytes(in.dial(dst))...))
}

// tapConnections returns the layer that shows opaque connections to dst in tap.
func (in *Inbound) tapConnections(dst netip.AddrPort) layer.Layer[tcplayer.Request, net.Conn] {
	return tap.Connections(in.Taps, tap.Inbound, tap.WithDestination(dst, map[string]string{"tls": "loopback"}))
}

// requests returns the service that receives every request. After the layers that all requests
// share, [Inbound.applyPolicy] passes permitted requests on to the application.
func (in *Inbound) requests() httplayer.Service {
	// A request counts as ended, for example for Limit, when its response header has arrived. Its body may take
	// long.
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("trace", traces.Server(in.Spans, meters.Inbound)).
		With("explain", tap.Explain(in.Taps, httplayer.HTTP{})).
		With("errors", in.Meters.HTTPErrors(meters.Inbound, originOf)).
		Limit(in.MaxInFlight).
		With("orig-proto", mesh.DowngradeOrigProto()).
		With("trailers", httplayer.StripHeader("l5d-orig-proto")).
		With("client-id", mesh.ClientID(clientID)).
		Service(requestPolicy{in.applyPolicy})
}

// logical returns the service for requests with the key l. It counts them and shows them in tap. If
// l's name has a profile, it also counts them by the profile's routes. Timeouts, retries and other
// settings in the profile have no effect here, because the client's proxy applies them.
func (in *Inbound) logical(ctx context.Context, l logicalKey) httplayer.Service {
	// The order is that of linkerd's proxy: layers that are further down see the request later.
	svc := httplayer.NewStack().
		With("route metrics", in.Meters.InboundRoute(l.permit.Value(), l.dst)).
		With("trace", traces.Client(in.Spans, meters.Inbound)).
		With("metrics", in.Meters.Endpoint(ctx, meters.Inbound, in.labels(l))).
		With("tap", tap.Layer(in.Taps, httplayer.HTTP{}, tapOptions(l)...)).
		Service(in.endpoints.Service(l.dst))
	// Too many watched profiles only cost the counts per route. The request is served.
	if l.name == "" || !in.acquireProfile(ctx) {
		return svc
	}
	// The profile only selects the route that is counted: every backend is the same service svc.
	return profiles.New(ctx, profiles.Config{
		Target: l.name, Source: in.profiles, InitialWait: in.Control.ProfileInitial, Log: in.Log,
	}, httplayer.HTTP{}, func(string) httplayer.Service { return svc }, in.routeMetrics(l.name))
}

// endpoint returns the service for HTTP requests to one port of the application. Requests wait in
// its queue while the application accepts no more HTTP/2 streams. If the application refuses a
// connection, they fail without waiting.
func (in *Inbound) endpoint(ctx context.Context, dst netip.AddrPort) httplayer.Service {
	// Keep the version, because the application should see the one that the client used.
	opts := append(in.Connect.Requests(in.dial(dst), in.Pool), httplayer.WithKeepVersion())
	return httplayer.NewStack().WithTarget(dst.String()).
		Queue(in.HTTPQueue.Capacity, in.HTTPQueue.MaxWait()).
		Service(httplayer.SingleEndpoint(httplayer.NewEndpoint(ctx, dst.String(), opts...)))
}

// meshedServer returns the HTTP server for connections from other proxies. Like linkerd's proxy, it
// reports the causes of errors in response headers, and sets no minimum rate for uploads.
func (in *Inbound) meshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, mesh.WithErrorHeaders(true), httplayer.WithMinBodyRate(0, 0))
}

// unmeshedServer returns the HTTP server for clients without an identity. They are less trusted: it
// does not report the causes of errors, and uploads must not be too slow or pause for too long.
func (in *Inbound) unmeshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, mesh.WithErrorHeaders(false), httplayer.WithMinBodyRate(in.BodyIdle, 0))
}

// server returns an HTTP server that passes each request to requests. errorHeaders and bodyRate
// depend on how far the client is trusted.
func (in *Inbound) server(
	requests httplayer.Service, errorHeaders, bodyRate httplayer.ServerOption,
) tcplayer.Server {
	opts := append(in.Config.Server.Options(), errorHeaders, bodyRate,
		httplayer.WithConnect(), httplayer.WithErrorHandler(nil), httplayer.WithCloseOnError(true), httplayer.WithLogger(in.Log),
		httplayer.WithRefused(in.Meters.HTTPRefused(meters.Inbound)), httplayer.WithDrainOnDone(in.Ending))
	if in.Access != settings.NoAccessLog {
		opts = append(opts, httplayer.WithAccessLog(in.AccessLog, httplayer.AccessLogFormat(in.Access), clientID))
	}
	return httplayer.NewServer(requests, opts...)
}
