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

// originalDst returns the address to which the application connected, before the
// connection was redirected to the proxy. The cache of servers has this address as key.
func originalDst(conn net.Conn) (netip.AddrPort, error) {
	dst, ok := tcplayer.OriginalDst(conn)
	if !ok {
		return dst, errors.New("no original destination")
	}
	return dst, nil
}

// detect returns a server that detects the protocol of a connection. The server passes
// HTTP/1 and HTTP/2 to the server http, and any other protocol to the server opaque. If
// opaque is nil, it resets connections with any other protocol.
func (o *Outbound) detect(http, opaque tcplayer.Server, i tcplayer.DetectInstruments) tcplayer.Server {
	return tcplayer.Detect(tcplayer.Protocols{HTTP1: http, HTTP2: http, Opaque: opaque},
		tcplayer.WithDetectTimeout(o.DetectTimeout), tcplayer.WithDetectMetrics(i))
}

// byProfile returns a server that passes each connection to dst to one of three arguments:
//
//   - opaque, if [settings.Outbound.OpaquePorts] or the profile of dst marks its port as opaque
//   - named, if the profile routes by TLS server name
//   - detected, for all other connections, and for every connection in ingress mode
//
// The router requests gets the HTTP requests on the connections that go to detected.
func (o *Outbound) byProfile(dst netip.AddrPort, requests *router, opaque, named, detected tcplayer.Server) tcplayer.Server {
	return &profileDispatch{
		Service: requests.counts.Handled(meters.Detected, detected), opaque: requests.counts.Handled(meters.Opaque, opaque),
		named:        requests.counts.Handled(meters.Opaque, named),
		requests:     requests,
		alwaysOpaque: o.OpaquePorts.Contains(dst.Port()) && !o.Ingress,
		alwaysDetect: o.Ingress,
	}
}

// profileDispatch is a server for the connections to one address. The settings and the
// profile of the address determine which of three servers gets a connection: the field
// opaque, the field named, or the embedded Service.
type profileDispatch struct {
	layer.Service[net.Conn, tcplayer.ByteCount] // serves connections that are detected

	opaque       tcplayer.Server
	named        tcplayer.Server // by TLS server name
	requests     *router
	alwaysOpaque bool // the settings mark the port as opaque
	alwaysDetect bool // ingress mode: ignore an opaque profile
}

func (p *profileDispatch) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if p.alwaysOpaque {
		return p.opaque.Call(ctx, conn)
	}
	d, err := p.requests.Dispatch(ctx)
	switch {
	case err != nil:
		return tcplayer.ByteCount{}, err
	case p.alwaysDetect:
	case d.Opaque:
		return p.opaque.Call(ctx, conn)
	case byServerName(p.requests.Profile()):
		return p.named.Call(ctx, conn)
	}
	return p.Service.Call(context.WithValue(ctx, requestsKey{}, p.requests), conn)
}

// Describe shows the router of requests and the server of opaque connections.
func (p *profileDispatch) Describe() layer.Node {
	return layer.Node{Name: "by profile", Children: []layer.Node{
		{Name: "requests", Children: []layer.Node{layer.Describe(p.requests)}},
		{Name: "opaque", Children: []layer.Node{layer.Describe(p.opaque)}},
	}}
}

// byServerName reports whether p is the profile of a policy that routes TLS connections
// by their server name.
func byServerName(p *profiles.Profile) bool { return p.Policy != nil && p.Policy.ServerNames }

// requestsKey is the context key of the *router that sends the requests of a connection.
// It is the router of the original destination of the connection.
type requestsKey struct{}

// byConnection returns a service that passes a request to the router of its connection.
// Requests on direct connections, which have no router, go to the service in the argument.
// In ingress mode, requests with the header l5d-dst-override also go to that service.
func (o *Outbound) byConnection(named httplayer.Service) httplayer.Service {
	return &byConnection{Service: named, ingress: o.Ingress}
}

// byConnection is the service that passes each request to the router of its connection, or
// to the embedded Service.
type byConnection struct {
	httplayer.Service // for requests that name their target

	ingress bool
}

func (b *byConnection) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	requests, ok := ctx.Value(requestsKey{}).(*router)
	if !ok || b.ingress && req.Header.Get(overrideHeader) != "" {
		return b.Service.Call(ctx, req)
	}
	return requests.Call(ctx, req)
}

func (b *byConnection) Next() httplayer.Service { return b.Service }

// Describe names the layer.
func (b *byConnection) Describe() layer.Node { return layer.Node{Name: "by connection"} }
