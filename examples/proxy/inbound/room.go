package inbound

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
	"github.com/gotower/gotower/tap"
)

// How many names, and how many ports, have services and metrics of their own at
// a time. Clients choose both, be it to fill the memory: what comes beyond is
// served all the same, but counted less well, and forgotten soon.
const (
	mostNames = 500 // and as many clients and ports without a name
	mostPorts = 1000
	briefly   = time.Second
)

// withRoom returns first, and next for what first, a cache, has no room for.
func withRoom[Req, Rsp any](first, next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
	return &room[Req, Rsp]{first, next}
}

type room[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	next layer.Service[Req, Rsp]
}

func (r *room[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	rsp, err := r.Service.Call(ctx, req)
	if err != nil && isFull(err) { // nothing has seen req
		return r.next.Call(ctx, req)
	}
	return rsp, err
}

func (r *room[Req, Rsp]) Next() layer.Service[Req, Rsp] { return r.Service }

func (r *room[Req, Rsp]) Describe() layer.Node {
	return layer.Node{Name: "room", Children: []layer.Node{{Name: "beyond", Children: []layer.Node{layer.Describe(r.next)}}}}
}

// isFull reports whether a cache refused for want of room.
func isFull(err error) bool {
	e, ok := errors.AsType[*layer.Error](err)
	return ok && e.Layer == "cache" && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// shownOnly shows requests, and does not count them by client and port: there
// are too many of those just now.
func (in *Inbound) shownOnly(_ context.Context, l logical) httplayer.Service {
	return httplayer.NewStack().
		With("tap", tap.Layer(in.Taps, httplayer.Accessor{}, in.shown(l)...)).
		Service(in.sent(l.dst))
}

func (in *Inbound) endpointBeyond(ctx context.Context, dst netip.AddrPort) httplayer.Service {
	return in.queued(ctx, dst, in.dial())
}

func (in *Inbound) portBeyond(ctx context.Context, dst netip.AddrPort) tcplayer.Service {
	return in.connected(ctx, dst, in.dial())
}
