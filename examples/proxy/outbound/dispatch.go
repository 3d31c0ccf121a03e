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
)

// originalDst returns the address that the application connected to.
func originalDst(conn net.Conn) (netip.AddrPort, error) {
	dst, ok := tcplayer.OriginalDst(conn)
	if !ok {
		return dst, errors.New("no original destination")
	}
	return dst, nil
}

// detect serves connections by their protocol. If opaque is nil, connections that
// do not speak HTTP are reset.
func (o *Outbound) detect(http, opaque tcplayer.Server, i tcplayer.DetectInstruments) tcplayer.Server {
	return tcplayer.Detect(tcplayer.Protocols{HTTP1: http, HTTP2: http, Opaque: opaque},
		tcplayer.WithDetectTimeout(o.DetectTimeout), tcplayer.WithDetectMetrics(i))
}

// byProfile returns the server of the connections to dst. It sends a connection to
// opaque, without detection, if the profile of its address or
// [settings.Outbound.OpaquePorts] requires that, and else to detected. In ingress mode
// all connections are detected. requests sends the requests of detected connections.
func (o *Outbound) byProfile(dst netip.AddrPort, requests *router, opaque, detected tcplayer.Server) tcplayer.Server {
	return &profileDispatch{
		Service: requests.counts.Handled(meters.Detected, detected), opaque: requests.counts.Handled(meters.Opaque, opaque),
		requests:     requests,
		alwaysOpaque: o.OpaquePorts.Contains(dst.Port()) && !o.Ingress,
		alwaysDetect: o.Ingress,
	}
}

// profileDispatch is the server of the connections to one address.
type profileDispatch struct {
	layer.Service[net.Conn, tcplayer.ByteCount] // of detected connections

	opaque       tcplayer.Server
	requests     *router
	alwaysOpaque bool
	alwaysDetect bool
}

func (p *profileDispatch) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if p.alwaysOpaque {
		return p.opaque.Call(ctx, conn)
	}
	d, err := p.requests.Dispatch(ctx)
	switch {
	case err != nil:
		return tcplayer.ByteCount{}, err
	case d.Opaque && !p.alwaysDetect:
		return p.opaque.Call(ctx, conn)
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

// requestsKey is the context key of the *router of the address that the connection
// was made to.
type requestsKey struct{}

// byConnection sends a request by the router of its connection. It sends requests of
// direct connections, and in ingress mode those with l5d-dst-override, by named.
func (o *Outbound) byConnection(named httplayer.Service) httplayer.Service {
	return &byConnection{Service: named, ingress: o.Ingress}
}

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
