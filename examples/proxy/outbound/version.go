package outbound

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// balanced is an endpoint that a balancer keeps off while it is not ready.
func balanced(e *httplayer.Endpoint) httplayer.Service { return e }

// client sends requests to the endpoint, as what as makes of it. Where its proxy
// is told what is spoken on a connection, it believes that, so that there is a
// client for each version: an upgrade goes by HTTP/1 also to a proxy that takes
// all else by HTTP/2.
func (o *Outbound) client(ctx context.Context, p peer, as func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	dialled := func(p peer, version ...httplayer.EndpointOption) httplayer.Service {
		opts := append(o.Connect.Requests(o.dial(ctx, p), o.Pool), version...)
		opts = append(opts, httplayer.Ping(p.Endpoint.PingInterval, p.Endpoint.PingTimeout))
		return as(httplayer.NewEndpoint(ctx, p.Endpoint.Addr.String(), opts...))
	}
	if !p.told() {
		return dialled(p)
	}
	c := new(byVersion)
	c.h1.svc = dialled(p.speaking(tcplayer.HTTP1), httplayer.H1())
	c.h2.svc = dialled(p.speaking(tcplayer.HTTP2), httplayer.H2())
	c.first = &c.h1
	if p.h2 {
		c.first = &c.h2
	}
	return c
}

// byVersion sends each request by the version that it has.
type byVersion struct {
	h1, h2 version
	first  *version // by which Ready connects before there was a request
}

type version struct {
	svc  httplayer.Service
	used atomic.Bool
}

// Ready waits for the versions that are in use: a queue above would else find
// one that is not, and be refused, again and again.
func (b *byVersion) Ready(ctx context.Context) error {
	h1, h2 := b.h1.used.Load(), b.h2.used.Load()
	if !h1 && !h2 {
		return b.first.svc.Ready(ctx)
	}
	if h1 {
		if err := b.h1.svc.Ready(ctx); err != nil {
			return err
		}
	}
	if h2 {
		return b.h2.svc.Ready(ctx)
	}
	return nil
}

func (b *byVersion) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	v := &b.h1
	if req.ProtoMajor >= 2 && len(req.Header["Upgrade"]) == 0 && req.Method != http.MethodConnect {
		v = &b.h2
	}
	if !v.used.Load() {
		v.used.Store(true)
	}
	return v.svc.Call(ctx, req)
}

// Describe shows the client of each version that is in use.
func (b *byVersion) Describe() layer.Node {
	n := layer.Node{Name: "by version"}
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() || v == b.first {
			n.Children = append(n.Children, layer.Describe(v.svc))
		}
	}
	return n
}
