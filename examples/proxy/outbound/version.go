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

// client sends requests to the endpoint, through as. To another proxy, and to a peer
// that is known to take HTTP/2, each request goes by its own version. Where
// the endpoint's proxy is told what is spoken on a connection, there is a client
// for each version.
func (o *Outbound) client(ctx context.Context, p peer, as func(*httplayer.Endpoint) httplayer.Service) httplayer.Service {
	dialled := func(p peer, version ...httplayer.EndpointOption) httplayer.Service {
		opts := append(o.Connect.Requests(o.dial(ctx, p), o.Pool), version...)
		opts = append(opts, httplayer.WithPing(p.Endpoint.PingInterval, p.Endpoint.PingTimeout))
		return as(httplayer.NewEndpoint(ctx, p.Endpoint.Addr.String(), opts...))
	}
	switch {
	case p.told():
		return &byVersion{
			h1: version{svc: dialled(p.speaking(tcplayer.HTTP1), httplayer.WithHTTP1())},
			h2: version{svc: dialled(p.speaking(tcplayer.HTTP2), httplayer.WithHTTP2())},
		}
	case p.tls != nil || p.h2:
		return dialled(p, httplayer.KeepVersion())
	}
	return dialled(p)
}

// byVersion sends each request by the version that it has.
type byVersion struct {
	h1, h2 version
}

type version struct {
	svc  httplayer.Service
	used atomic.Bool
}

// Ready waits for the versions that are in use: a queue above would else find
// one that is not, and be refused, again and again.
func (b *byVersion) Ready(ctx context.Context) error {
	for _, v := range []*version{&b.h1, &b.h2} {
		if v.used.Load() {
			if err := v.svc.Ready(ctx); err != nil {
				return err
			}
		}
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
		if v.used.Load() {
			n.Children = append(n.Children, layer.Describe(v.svc))
		}
	}
	return n
}
