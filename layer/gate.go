package layer

import (
	"context"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Gate admits all requests or none, as its Open and Close determine. Pass it to
// [Gated]. The zero Gate is open. It is safe for concurrent use and must not be copied.
type Gate struct {
	closed  atomic.Bool
	changed notify.Broadcast
}

// Open makes the gate admit all requests.
func (g *Gate) Open() {
	g.closed.Store(false)
	g.changed.Wake()
}

// Close makes the gate reject new requests. Requests in flight continue.
func (g *Gate) Close() { g.closed.Store(true) }

func (g *Gate) isOpen() bool { return !g.closed.Load() }

// Gated admits requests while g is open. Several services may share a Gate.
//
// Admission: every request is admitted while g is open. Ready waits until g is open,
// then for inner.
//
// Cancellation: a request whose context has ended is rejected.
//
// Body: not touched.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady].
//
// Cost: one atomic load; no allocation.
//
// A nil gate panics.
func Gated[Req, Rsp any](g *Gate, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(g != nil, "Gated: nil Gate")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &gated[Req, Rsp]{
			Service:   next,
			gate:      g,
			target:    o.target,
			rejected:  tally{to: o.to.LayerRejections.With("layer", "gate")},
			rejection: &Error{Layer: "gate", Target: o.target, Kind: ErrNotReady, Reason: "closed"},
		}
	}
}

type gated[Req, Rsp any] struct {
	Service[Req, Rsp]
	gate      *Gate
	target    string
	rejected  tally
	rejection *Error // shared by all rejections; never modified
}

func (g *gated[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := g.gate.changed.Wait(ctx, g.gate.isOpen); err != nil {
			return err
		}
		if err := g.Service.Ready(ctx); err != nil {
			return err
		}
		if g.gate.isOpen() {
			return nil
		}
	}
}

func (g *gated[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, rejectDone(ctx, "gate", g.target)
	}
	if !g.gate.isOpen() {
		g.rejected.inc()
		return zero, g.rejection
	}
	return g.Service.Call(ctx, req)
}

func (g *gated[Req, Rsp]) Next() Service[Req, Rsp] { return g.Service }

func (g *gated[Req, Rsp]) Describe() Node {
	state := "open"
	if !g.gate.isOpen() {
		state = "closed"
	}
	return Node{Name: "gate", State: State{{"state", state}, {"rejected", g.rejected.n.Load()}}}
}
