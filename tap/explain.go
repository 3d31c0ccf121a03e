package tap

import (
	"context"

	"github.com/gotower/gotower/layer"
)

// Explain has the layers below say how they choose ([layer.Explain]) for as long
// as a watcher asks for it. Put it on top of the stack, above profiles and
// balancers; the [Layer] below attaches what was said to its events. A nil reg is
// one that nobody can watch.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: none of its own.
//
// Body: bodies are not looked at.
//
// Errors: passed as they are.
//
// Cost: one atomic load while nobody asks. While somebody does, every request
// pays for its explanation: which will be shown is known only below.
func Explain[Req, Rsp any](reg *Registry) layer.Layer[Req, Rsp] {
	if reg == nil {
		reg = new(Registry)
	}
	return func(next layer.Service[Req, Rsp]) layer.Service[Req, Rsp] {
		return &explained[Req, Rsp]{Service: next, reg: reg}
	}
}

type explained[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	reg *Registry
}

func (e *explained[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if present := e.reg.active.Load(); present != nil && present.explain {
		ctx, _ = layer.Explain(ctx)
	}
	return e.Service.Call(ctx, req)
}

// Next returns the inner service, for [layer.Describe].
func (e *explained[Req, Rsp]) Next() layer.Service[Req, Rsp] { return e.Service }

// Describe says whether somebody asks for explanations.
func (e *explained[Req, Rsp]) Describe() layer.Node {
	present := e.reg.active.Load()
	return layer.Node{Name: "explain", State: layer.State{{Key: "on", Value: present != nil && present.explain}}}
}
