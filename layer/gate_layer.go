package layer

import (
	"context"
	"errors"
)

// Gated lets requests through g. Several services may share a gate.
//
// Admission: as the gate says, at once. Ready waits until the gate lets
// somebody through, then for inner.
//
// Cancellation: a request whose context is done is refused. One in flight when
// the gate shuts is not disturbed.
//
// Body: not touched.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady]. A request that inner
// refused was not let through after all: its place is free again.
//
// Cost: one atomic load while the gate is open, no allocation.
//
// A nil gate does nothing.
func Gated[Req, Rsp any](g *Gate, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if g == nil {
			return next
		}
		return &gated[Req, Rsp]{
			Service: next,
			gate:    g,
			target:  o.target,
			refused: tally{to: o.to.LayerRejections.With("layer", "gate")},
			shut:    &Error{Layer: "gate", Target: o.target, Kind: ErrNotReady, Reason: "shut"},
			taken:   &Error{Layer: "gate", Target: o.target, Kind: ErrNotReady, Reason: "limited, and every place is taken"},
		}
	}
}

type gated[Req, Rsp any] struct {
	Service[Req, Rsp]
	gate        *Gate
	target      string
	refused     tally
	shut, taken *Error // shared by every refusal; never changed
}

func (g *gated[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := g.gate.changed.Wait(ctx, g.gate.hasRoom); err != nil {
			return err
		}
		if err := g.Service.Ready(ctx); err != nil {
			return err
		}
		if g.gate.hasRoom() {
			return nil
		}
	}
}

func (g *gated[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var none Rsp
	if gone(ctx) {
		return none, refuseDone(ctx, "gate", g.target)
	}
	pass, ok := g.gate.TryAcquire()
	if !ok {
		g.refused.inc()
		if p := g.gate.now.Load(); p != nil && p.mode == gateLimited {
			return none, g.taken
		}
		return none, g.shut
	}
	rsp, err := g.Service.Call(ctx, req)
	if err != nil && errors.Is(err, ErrNotReady) {
		pass.Release()
	}
	return rsp, err
}

func (g *gated[Req, Rsp]) Next() Service[Req, Rsp] { return g.Service }

func (g *gated[Req, Rsp]) Describe() Node {
	return Node{Name: "gate", State: append(g.gate.state(), Attr{"refused", g.refused.n.Load()})}
}
