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

// originalDst is the address that a connection was made to.
func originalDst(conn net.Conn) (netip.AddrPort, error) {
	dst, ok := tcplayer.OriginalDst(conn)
	if !ok {
		return dst, errors.New("no original destination")
	}
	return dst, nil
}

// detect looks which protocol the client speaks. A nil opaque resets what is no
// HTTP.
func (o *Outbound) detect(http, opaque tcplayer.Server, to tcplayer.DetectInstruments) tcplayer.Server {
	return tcplayer.Detect(tcplayer.Protocols{HTTP1: http, HTTP2: http, Opaque: opaque},
		tcplayer.WithDetectTimeout(o.DetectTimeout), tcplayer.WithDetectMetrics(to))
}

// byProfile gives a connection to opaque if the profile of its address forbids
// to look into it, or its port is one where the server may speak first. All
// others go to looked; their requests are sent by requests.
func (o *Outbound) byProfile(dst netip.AddrPort, requests *router, opaque, looked tcplayer.Server) tcplayer.Server {
	return &profiled{
		Service: requests.counts.Handled(meters.Detected, looked), opaque: requests.counts.Handled(meters.Opaque, opaque),
		requests: requests,
		unseen:   o.OpaquePorts.Contains(dst.Port()) && !o.Ingress,
		all:      o.Ingress,
	}
}

// profiled is the server of the connections to one address.
type profiled struct {
	layer.Service[net.Conn, tcplayer.ByteCount] // of those that are looked into

	opaque   tcplayer.Server
	requests *router
	unseen   bool // none is looked into
	all      bool // all are looked into, whatever the profile says
}

func (p *profiled) Call(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
	if p.unseen {
		return p.opaque.Call(ctx, conn)
	}
	d, err := p.requests.Dispatch(ctx)
	switch {
	case err != nil:
		return tcplayer.ByteCount{}, err
	case d.Opaque && !p.all:
		return p.opaque.Call(ctx, conn)
	}
	return p.Service.Call(context.WithValue(ctx, requestsKey{}, p.requests), conn)
}

// Describe shows where the requests and the bytes of the connections go.
func (p *profiled) Describe() layer.Node {
	return layer.Node{Name: "by profile", Children: []layer.Node{
		{Name: "requests", Children: []layer.Node{layer.Describe(p.requests)}},
		{Name: "opaque", Children: []layer.Node{layer.Describe(p.opaque)}},
	}}
}

// requestsKey finds, in the context of a request, the service of the address that
// its connection was made to.
type requestsKey struct{}

// byConnection serves a request where its connection was going, and by named
// if that is not known, or if the request says otherwise and may do so.
func (o *Outbound) byConnection(named httplayer.Service) httplayer.Service {
	return &byConnection{Service: named, ingress: o.Ingress}
}

type byConnection struct {
	httplayer.Service // of requests that go where they say

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
