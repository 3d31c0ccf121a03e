package profiles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gotower/gotower/layer"
)

// split shares requests among targets in proportion to their weights. It has at least one
// target, except before the first profile.
type split[Req, Rsp any] struct {
	apex  string // the target that errors and explanations show: see Profile.Name
	parts []part[Req, Rsp]
	total uint64 // sum of all weights

	ordered bool // whether the first ready target receives all requests
}

// part is a target of a split, its weight, and its service.
type part[Req, Rsp any] struct {
	Target
	svc   layer.Service[Req, Rsp]
	key   string       // key of svc in Router.backendServices, for a backend of a policy
	route *layer.Route // route of the requests to a backend of a policy; nil for other targets
}

// call sends req to the target.
func (p *part[Req, Rsp]) call(ctx context.Context, req Req) (Rsp, error) {
	if p.route != nil {
		ctx = layer.WithRoute(ctx, p.route)
	}
	return p.svc.Call(ctx, req)
}

func (s *split[Req, Rsp]) add(t Target, svc layer.Service[Req, Rsp]) {
	s.parts = append(s.parts, part[Req, Rsp]{Target: t, svc: svc})
	s.total += uint64(t.Weight)
}

// Call sends the request to the target that draw returns. If that target rejects the request, Call
// tries every other target once.
func (s *split[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if len(s.parts) == 1 {
		return s.parts[0].call(ctx, req)
	}
	i := s.draw()
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		s.explain(why, i)
	}
	rsp, err := s.parts[i].call(ctx, req)
	if err == nil || !errors.Is(err, layer.ErrNotReady) {
		return rsp, err
	}
	return s.callOthers(ctx, req, i, err)
}

// draw returns the index of a ready target, chosen at random by weight. In an ordered split, it
// returns the first ready target.
//
// The first draw is among all targets. If the drawn target is not ready, a second draw is among the
// ready targets. Therefore a ready target gets requests in proportion to its weight. W is the
// weight of all targets, and R is the weight of the ready ones. A ready target of weight w is drawn
// with the probability w/W + (1 − R/W)·w/R = w/R.
//
// If no target is ready, draw returns the target of the first draw, or the first target of an
// ordered split. The service of that target, such as a queue, then waits or rejects the request.
func (s *split[Req, Rsp]) draw() int {
	if s.ordered {
		return max(0, s.drawFrom(func(i int) bool { return layer.Poll(s.parts[i].svc) == nil }))
	}
	first := 0
	for n := rand.Uint64N(s.total); n >= uint64(s.parts[first].Weight); first++ {
		n -= uint64(s.parts[first].Weight)
	}
	if layer.Poll(s.parts[first].svc) == nil {
		return first
	}
	if i := s.drawFrom(func(i int) bool { return i != first && layer.Poll(s.parts[i].svc) == nil }); i >= 0 {
		return i
	}
	return first
}

// drawFrom returns the index of a target for which wanted returns true, chosen at random by weight.
// In an ordered split, it returns the first such target. If wanted returns false for all targets,
// it returns -1. It takes one pass: each target replaces the previous choice with a probability of
// its weight divided by the weight of all targets so far.
func (s *split[Req, Rsp]) drawFrom(wanted func(int) bool) int {
	drawn, total := -1, uint64(0)
	for i := range s.parts {
		if !wanted(i) {
			continue
		}
		if s.ordered {
			return i
		}
		weight := uint64(s.parts[i].Weight)
		total += weight
		if rand.Uint64N(total) < weight {
			drawn = i
		}
	}
	return drawn
}

// callOthers tries the targets other than the target i, which has rejected the request with
// the error cause. Ready targets are tried first, and drawFrom selects among them. If all targets
// reject the request, callOthers returns a rejection.
func (s *split[Req, Rsp]) callOthers(ctx context.Context, req Req, i int, cause error) (Rsp, error) {
	tried := make([]bool, len(s.parts))
	tried[i] = true
	n := 1
	for ; n < len(s.parts) && ctx.Err() == nil; n++ {
		if i = s.drawFrom(func(i int) bool { return !tried[i] && layer.Poll(s.parts[i].svc) == nil }); i < 0 {
			i = s.drawFrom(func(i int) bool { return !tried[i] })
		}
		tried[i] = true
		if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
			s.explain(why, i)
		}
		rsp, err := s.parts[i].call(ctx, req)
		if err == nil || !errors.Is(err, layer.ErrNotReady) {
			return rsp, err
		}
		// The split is closed only if every target is.
		if errors.Is(cause, layer.ErrClosed) {
			cause = err
		}
	}
	if n < len(s.parts) {
		cause = notClosed{cause} // the remaining targets may be open
	}
	var zero Rsp
	return zero, &layer.Error{
		Layer: layerName, Target: s.apex, Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("rejected by %d of %d targets", n, len(s.parts)), Err: cause,
	}
}
