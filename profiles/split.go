package profiles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gotower/gotower/layer"
)

// split shares requests among targets by weight. It has at least one target, except
// before the first profile.
type split[Req, Rsp any] struct {
	apex  string
	parts []part[Req, Rsp]
	total uint64 // sum of all weights
}

// part is a target and its service.
type part[Req, Rsp any] struct {
	Target
	svc layer.Service[Req, Rsp]
}

func (s *split[Req, Rsp]) add(t Target, svc layer.Service[Req, Rsp]) {
	s.parts = append(s.parts, part[Req, Rsp]{t, svc})
	s.total += uint64(t.Weight)
}

// Call sends the request to a target. If that target rejects it, every other target is tried once.
func (s *split[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if len(s.parts) == 1 {
		return s.parts[0].svc.Call(ctx, req)
	}
	i := s.draw()
	if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
		s.explain(why, i)
	}
	rsp, err := s.parts[i].svc.Call(ctx, req)
	if err == nil || !errors.Is(err, layer.ErrNotReady) {
		return rsp, err
	}
	return s.callOthers(ctx, req, i, err)
}

// draw returns the index of a ready target, chosen at random by weight.
//
// The first draw is among all targets, and counts if that target is ready. Otherwise a
// second draw is among the ready targets. A ready target of weight w still gets its
// share of the ready weight: w/W + (1 − R/W)·w/R = w/R, where W is the weight of all
// targets and R
//
// If no target is ready the first draw counts. The service below, such as a queue, then
// waits or rejects the request.
func (s *split[Req, Rsp]) draw() int {
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

// drawFrom returns the index of a target for which wanted returns true, chosen at
// random by weight, or -1 without such a target. It takes one pass: each target replaces the
// previous choice with the probability of its weight among the targets so far.
func (s *split[Req, Rsp]) drawFrom(wanted func(int) bool) int {
	drawn, total := -1, uint64(0)
	for i := range s.parts {
		if !wanted(i) {
			continue
		}
		weight := uint64(s.parts[i].Weight)
		total += weight
		if rand.Uint64N(total) < weight {
			drawn = i
		}
	}
	return drawn
}

// callOthers tries the targets other than i, which rejected the request with cause.
// Ready targets are tried first.
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
		rsp, err := s.parts[i].svc.Call(ctx, req)
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
