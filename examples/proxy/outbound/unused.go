package outbound

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/layer"
)

// atFirstCall delays mk, which makes the service for an endpoint, until the first request. Most
// endpoints of a large target never receive one.
func atFirstCall[Req, Rsp any](mk discover.MakeService[Req, Rsp]) discover.MakeService[Req, Rsp] {
	return func(ctx context.Context, t discover.Target) layer.Service[Req, Rsp] {
		return &unused[Req, Rsp]{mk: mk, ctx: ctx, target: t}
	}
}

// unused makes an endpoint's service at the first Call. Until then it is always ready, as an
// endpoint without connections is.
type unused[Req, Rsp any] struct {
	mk     discover.MakeService[Req, Rsp]
	ctx    context.Context //nolint:containedctx // closes the endpoint when it ends
	target discover.Target

	once sync.Once
	made atomic.Pointer[layer.Service[Req, Rsp]] // nil before the first Call
}

// Ready waits for the service if it is made. Otherwise nothing has to be awaited.
func (u *unused[Req, Rsp]) Ready(ctx context.Context) error {
	// made is nil until the first Call.
	if svc := u.made.Load(); svc != nil {
		return (*svc).Ready(ctx)
	}
	return nil
}

// Call makes the service on the first call, and then calls it.
func (u *unused[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	// Concurrent first calls wait until the service is made.
	u.once.Do(func() {
		svc := u.mk(u.ctx, u.target)
		u.made.Store(&svc)
	})
	return (*u.made.Load()).Call(ctx, req)
}

// Describe shows the endpoint's service, or that it is unused.
func (u *unused[Req, Rsp]) Describe() layer.Node {
	if svc := u.made.Load(); svc != nil {
		return layer.Describe(*svc)
	}
	return layer.Node{Name: "unused"}
}
