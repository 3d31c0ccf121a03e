// Package inbound is the path of the requests to the application. The path begins with a
// connection of a client to the proxy and ends at a port of the application. Read
// inbound.go from top to bottom: each function is the next part of the path.
//
//	                                             ┌▶ HTTP ─▶ limit ─▶ orig-proto ─▶ client id ─▶ policy ─▶ name ─▶ queue ┐
//	connection ─▶ original ─▶ TLS for ─▶ protocol┤                                                                      ├▶ application
//	              address     our name           └▶ opaque ─▶ policy ──────────────────────────────────────────────────┘
//
// A direct connection is made to an address of the proxy and not redirected. It must come
// from another proxy with an identity. Its transport header contains the port of the
// application.
package inbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/examples/proxy/settings"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
	"github.com/gotower/gotower/tap"
)

// New returns the server of the connections that are made to the application. Its
// connections to the application and its watches of profiles are closed when ctx ends.
func New(ctx context.Context, c Config) *Inbound {
	in := newInbound(c)
	idle := max(c.DiscoveryIdle, 1)
	in.logicals = newCache(ctx, in.logical, idle)
	in.endpoints = newCache(ctx, in.endpoint, idle)
	in.ports = newCache(ctx, in.port, idle, layer.WithCompletion(tcplayer.UntilClosed))

	in.policies = newPolicies(ctx, in)

	in.Requests = in.requests()
	in.http = &byClient{Server: in.unmeshedServer(in.Requests), meshed: in.meshedServer(in.Requests)}
	in.opaque = in.forward()
	in.Server = tcplayer.Transparent(in.Origin, in.redirected(), in.direct())
	return in
}

// redirected returns the server of connections that were redirected to the proxy. It
// terminates TLS for the server name of the proxy, and then detects the protocol. If the
// policy marks a connection as opaque, the server neither terminates TLS nor detects the
// protocol.
func (in *Inbound) redirected() tcplayer.Server {
	metrics := in.detectMetrics()
	detect := func(timeout time.Duration) tcplayer.Server {
		return tcplayer.Detect(tcplayer.Protocols{HTTP1: in.http, HTTP2: in.http, Opaque: in.opaque},
			tcplayer.WithDetectTimeout(timeout), tcplayer.WithSkipDetect(in.isOpaque), metrics)
	}
	detected := connections().
		With("metrics", in.clientMetrics(false)).
		Service(&byProtocol{Server: detect(in.DetectTimeout), within: detect, http: in.http, opaque: in.opaque})
	passthrough := connections().
		With("metrics", in.clientMetrics(true)).
		Service(in.opaque)
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		With("own addresses", layer.Filter[net.Conn, tcplayer.ByteCount](in.isOwn)).
		With("policy", in.withPolicy).
		Service(in.terminate(tcplayer.TLSServers{Terminate: detected, Passthrough: passthrough, Cleartext: detected}))
}

// terminate returns a server that terminates TLS for the server name of the proxy. The
// argument to has the servers for connections with this TLS (Terminate), with other TLS
// (Passthrough) and in cleartext (Cleartext). If the proxy has no identity, terminate
// returns the server for cleartext.
func (in *Inbound) terminate(to tcplayer.TLSServers) tcplayer.Server {
	if in.Identity == nil {
		return to.Cleartext
	}
	return tcplayer.DetectTLS(in.Identity.Server(), tcplayer.MatchServerName(in.ServerName), to,
		tcplayer.WithDetectTimeout(in.DetectTimeout), tcplayer.WithSkipDetect(in.isOpaque))
}

// direct returns the server of connections that other proxies made to an address of this
// proxy. Each is forwarded to the port in its transport header. If this proxy has no
// identity, direct returns nil, and all such connections are reset.
func (in *Inbound) direct() tcplayer.Server {
	if in.Identity == nil {
		return nil
	}
	meshed := connections().
		With("meshed", layer.Filter[net.Conn, tcplayer.ByteCount](isMeshed)).
		Service(tcplayer.DetectTransport(tcplayer.TransportServers{Header: in.byHeader()},
			tcplayer.WithDetectTimeout(in.DetectTimeout)))
	return connections().
		With("errors", tcplayer.OnError(in.countTCP)).
		Service(tcplayer.DetectTLS(in.Identity.Server(tcplayer.TransportProtocol), tcplayer.MatchServerName(in.ServerName),
			tcplayer.TLSServers{Terminate: meshed}, tcplayer.WithDetectTimeout(in.DetectTimeout)))
}

// forward returns the server of opaque connections. It forwards the bytes of a connection
// to its original destination if the policy permits the connection.
func (in *Inbound) forward() tcplayer.Server {
	return connections().
		With("explain", tap.Explain[net.Conn, tcplayer.ByteCount](in.Taps)).
		With("policy", in.admission).
		Service(tcplayer.Forward(in.ports.Router(serverPort)))
}

// port returns a service that connects to dst, a port of the application, for each opaque
// connection. It also shows these connections in tap.
func (in *Inbound) port(ctx context.Context, dst netip.AddrPort) tcplayer.Service {
	return tcplayer.NewStack(layer.WithTarget[net.Conn](dst.String())).
		With("tap", in.tapConnections(dst)).
		Service(tcplayer.NewEndpoint(ctx, dst.String(), in.Connect.Bytes(in.dial(dst))...))
}

// tapConnections returns the layer that shows the opaque connections to dst in tap.
func (in *Inbound) tapConnections(dst netip.AddrPort) layer.Layer[tcplayer.Request, net.Conn] {
	return tap.Connections(in.Taps, tap.Inbound, tap.WithDestination(dst, map[string]string{"tls": "loopback"}))
}

// requests returns the service that receives every request. It applies the layers for all
// requests, and then [Inbound.applyPolicy], which passes each permitted request to a
// service of the application.
func (in *Inbound) requests() httplayer.Service {
	return httplayer.NewStack(layer.WithCompletion(layer.AtReturn[*http.Response])).
		With("explain", tap.Explain[*http.Request, *http.Response](in.Taps)).
		With("errors", in.Meters.HTTPErrors(meters.Inbound)).
		Limit(in.MaxInFlight).
		With("orig-proto", httplayer.DowngradeOrigProto()).
		With("trailers", httplayer.StripHeader("l5d-orig-proto")).
		With("client-id", httplayer.ClientID(clientID)).
		Service(requestPolicy{in.applyPolicy})
}

// logical returns the service of the requests that have the key l. It counts these
// requests and shows them in tap. If the name in l has a profile, requests are also
// counted by the routes of the profile. Timeouts, retries and other settings of the
// profile have no effect here, because the proxy of the client applies them.
func (in *Inbound) logical(ctx context.Context, l logicalKey) httplayer.Service {
	svc := httplayer.NewStack().
		With("route metrics", in.Meters.InboundRoute(l.permit.Value(), l.dst)).
		With("metrics", in.Meters.Endpoint(ctx, meters.Inbound, in.labels(l))).
		With("tap", tap.Layer(in.Taps, httplayer.Accessor{}, tapOptions(l)...)).
		Service(in.endpoints.Service(l.dst))
	if l.name == "" || !in.acquireProfile(ctx) {
		return svc
	}
	return profiles.New(ctx, l.name, in.profiles, httplayer.Accessor{},
		func(string) httplayer.Service { return svc },
		in.routeMetrics(l.name),
		profiles.WithInitialWait[*http.Request, *http.Response](in.Control.ProfileInitial),
		profiles.WithLogger[*http.Request, *http.Response](in.Log))
}

// endpoint returns the service of the HTTP requests to one port of the application. A
// request waits in the queue of the service while the application accepts no further HTTP/2
// stream. If the application refuses a connection, requests fail and do not wait.
func (in *Inbound) endpoint(ctx context.Context, dst netip.AddrPort) httplayer.Service {
	opts := append(in.Connect.Requests(in.dial(dst), in.Pool), httplayer.WithKeepVersion())
	return httplayer.NewStack(layer.WithTarget[*http.Response](dst.String())).
		Queue(in.HTTPQueue.Capacity, in.HTTPQueue.MaxWait()).
		Service(httplayer.SingleEndpoint(httplayer.NewEndpoint(ctx, dst.String(), opts...)))
}

// meshedServer returns the HTTP server for connections of other proxies. As in linkerd's
// proxy, it reports the causes of errors in response headers, and uploads have no minimum
// rate.
func (in *Inbound) meshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, httplayer.WithErrorHeaders(true), httplayer.WithMinBodyRate(0, 0))
}

// unmeshedServer returns the HTTP server for connections of clients without an identity. It
// does not report the causes of errors in headers. Uploads have a minimum rate and a
// maximum pause.
func (in *Inbound) unmeshedServer(requests httplayer.Service) tcplayer.Server {
	return in.server(requests, httplayer.WithErrorHeaders(false), httplayer.WithMinBodyRate(in.BodyIdle, minBodyRate))
}

// server returns an HTTP server that passes each request to the argument requests. The
// argument errorHeaders determines whether response headers report the causes of errors.
// The argument bodyRate sets the minimum rate of uploads.
func (in *Inbound) server(
	requests httplayer.Service, errorHeaders httplayer.HandlerOption, bodyRate httplayer.ServerOption,
) tcplayer.Server {
	h := httplayer.Handler(requests, httplayer.WithConnect(), httplayer.WithErrorHandler(nil), errorHeaders, httplayer.WithLogger(in.Log))
	if in.Access != settings.NoAccessLog {
		h = httplayer.AccessLog(in.AccessTo, httplayer.AccessLogFormat(in.Access), clientID)(h)
	}
	return httplayer.NewServer(h,
		append(in.Config.Server.Options(), bodyRate, httplayer.WithDrainOnDone(in.Ending), httplayer.WithServerLogger(in.Log))...)
}
