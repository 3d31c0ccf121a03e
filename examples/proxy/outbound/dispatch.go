package outbound

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/profiles"
)

// originalDst returns the address to which the application connected before the connection was
// redirected to the proxy. It is the key in the cache of servers.
func originalDst(conn net.Conn) (netip.AddrPort, error) {
	dst, ok := tcplayer.OriginalDst(conn)
	if !ok {
		return dst, errors.New("no original destination")
	}
	return dst, nil
}

// detect returns a server that passes HTTP/1 and HTTP/2 connections to http and all others to
// opaque. If opaque is nil, it resets the others.
func (o *Outbound) detect(http, opaque tcplayer.Server, i tcplayer.DetectInstruments) tcplayer.Server {
	return tcplayer.Detect(tcplayer.Protocols{HTTP1: http, HTTP2: http, Opaque: opaque},
		tcplayer.WithDetectTimeout(o.DetectTimeout), tcplayer.WithDetectMetrics(i), tcplayer.WithDetectLogger(o.Log))
}

// byProfile returns a server that passes each connection to dst to one of three servers:
//
//   - opaque, if [settings.Outbound.OpaquePorts] or dst's profile marks the port as opaque
//   - named, if the profile routes by TLS server name
//   - detected, otherwise, and always in ingress mode
//
// HTTP requests on detected's connections go to the router requests.
func (o *Outbound) byProfile(dst netip.AddrPort, requests *router, opaque, named, detected tcplayer.Server) tcplayer.Server {
	counts := meters.Connections(requests.counts)
	return &profileDispatch{
		Service: counts.Handled(meters.Detected, detected), opaque: counts.Handled(meters.Opaque, opaque),
		named:        counts.Handled(meters.Opaque, named),
		requests:     requests,
		alwaysOpaque: o.OpaquePorts.Contains(dst.Port()) && !o.Ingress,
		alwaysDetect: o.Ingress,
	}
}

// profileDispatch serves the connections to one address. The settings and the address's profile
// determine whether opaque, named or the embedded Service gets a connection.
type profileDispatch struct {
	layer.Service[net.Conn, tcplayer.ByteCount] // for connections whose protocol is detected

	opaque       tcplayer.Server
	named        tcplayer.Server // for connections that are routed by TLS server name
	requests     *router
	alwaysOpaque bool // the port is one of OUTBOUND_PORTS_DISABLE_PROTOCOL_DETECTION
	alwaysDetect bool // ingress mode: ignore that a profile is opaque
}

// Call forwards the connection as the profile of its target says.
func (p *profileDispatch) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	// The settings decide without a profile, so the connection need not wait for one.
	if p.alwaysOpaque {
		return p.opaque.Call(ctx, conn)
	}
	// Dispatch waits until the profile is known.
	d, err := p.requests.Dispatch(ctx)
	// The order matters: in ingress mode, opaque profiles and server names are ignored.
	switch {
	case err != nil:
		return tcplayer.ByteCount{}, err
	case p.alwaysDetect:
	case d.Opaque:
		return p.opaque.Call(ctx, conn)
	case byServerName(p.requests.Profile()):
		return p.named.Call(ctx, conn)
	}
	// Requests on this connection find their router in the context.
	return p.Service.Call(context.WithValue(ctx, requestsKey{}, p.requests), conn)
}

// Describe shows the router for requests and the server for opaque connections.
func (p *profileDispatch) Describe() layer.Node {
	return layer.Node{Name: "by profile", Children: []layer.Node{
		{Name: "requests", Children: []layer.Node{layer.Describe(p.requests)}},
		{Name: "opaque", Children: []layer.Node{layer.Describe(p.opaque)}},
	}}
}

// byServerName reports whether p comes from a policy that routes TLS connections by server name.
func byServerName(p *profiles.Profile) bool { return p.Policy != nil && p.Policy.ServerNames }

// requestsKey is the context key for the *router that serves a connection's requests. It is the
// router of the connection's original destination.
type requestsKey struct{}

// byConnection returns a service that passes each request to its connection's router. Requests on
// direct connections, which have no router, go to named. In ingress mode, so do requests with the
// header l5d-dst-override.
func (o *Outbound) byConnection(named httplayer.Service) httplayer.Service {
	return &byConnection{Service: named, ingress: o.Ingress}
}

// byConnection passes each request to its connection's router, or to the embedded Service.
type byConnection struct {
	httplayer.Service // for requests that name their target

	ingress bool // ingress mode: l5d-dst-override names the target
}

// Call sends the request through the router of its connection, if there is one.
func (b *byConnection) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	requests, ok := ctx.Value(requestsKey{}).(*router)
	// Direct connections have no original destination and so no router. In ingress mode, a header may name the
	// target.
	if !ok || b.ingress && req.Header.Get(overrideHeader) != "" {
		return b.Service.Call(ctx, req)
	}
	return requests.Call(ctx, req)
}

func (b *byConnection) Next() httplayer.Service { return b.Service }

// Describe names the layer.
func (b *byConnection) Describe() layer.Node { return layer.Node{Name: "by connection"} }

// Request sends another cluster's request to target, in the form name:port, for which this proxy is
// the gateway. The name in the request itself is ignored.
func (o *Outbound) Request(ctx context.Context, target string, req *http.Request) (*http.Response, error) {
	// Copy the request and its header, because the caller still owns them.
	out := *req
	out.Header = req.Header.Clone()
	// byConnection and the router take the target from this header.
	out.Header[overrideHeader] = []string{target}
	return o.Requests.Call(ctx, &out)
}

// Forward forwards the bytes on another cluster's connection to target, in the form name:port, for
// which this proxy is the gateway.
func (o *Outbound) Forward(ctx context.Context, target string, conn net.Conn) (tcplayer.ByteCount, error) {
	return tcplayer.Forward(o.opaqueNames.Service(target)).Call(ctx, conn)
}

// opaqueNamed returns the service for opaque connections to a name.
func (o *Outbound) opaqueNamed(ctx context.Context, target string) tcplayer.Service {
	return o.opaque(ctx, target, o.Profiles)
}
