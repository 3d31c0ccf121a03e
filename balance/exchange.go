package balance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// exchange observes one response.
type exchange[Req, Rsp any] struct {
	balancer *Balancer[Req, Rsp]
	node     *node[Req, Rsp]
	ctx      context.Context //nolint:containedctx // the caller's: it tells a caller who left from an endpoint that failed
	start    time.Duration
	price    time.Duration // of a response whose head says that it failed
	rsp      Rsp
	sampled  atomic.Bool
}

func (b *Balancer[Req, Rsp]) exchange(
	ctx context.Context, n *node[Req, Rsp], start time.Duration, rsp Rsp,
) *exchange[Req, Rsp] {
	return &exchange[Req, Rsp]{
		balancer: b, node: n, ctx: ctx, start: start, rsp: rsp,
		price: b.failures.price(ctx, layer.Outcome[Rsp]{Response: rsp}),
	}
}

// Data takes the latency at the first byte.
func (x *exchange[Req, Rsp]) Data(int) {
	if !x.sampled.Load() && x.sampled.CompareAndSwap(false, true) {
		x.balancer.record(x.node, x.start, x.price)
	}
}

// End takes the latency of a response without a byte, and the failure of one
// that looked well until then.
func (x *exchange[Req, Rsp]) End(err error) {
	defer x.node.end()
	out := layer.Outcome[Rsp]{Response: x.rsp, Err: err, Ended: err == nil}
	if x.sampled.CompareAndSwap(false, true) {
		x.balancer.observe(x.ctx, x.node, x.start, out)
		return
	}
	if x.price > 0 || err != nil && x.ctx.Err() != nil {
		return
	}
	if late := x.balancer.failures.price(x.ctx, out); late > 0 {
		x.balancer.record(x.node, x.start, late)
	}
}
