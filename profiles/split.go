package profiles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gotower/gotower/layer"
)

// split shares requests among targets by weight. It has at least one part.
type split[Req, Rsp any] struct {
	apex  string
	parts []part[Req, Rsp]
	total uint64 // of all weights
}

type part[Req, Rsp any] struct {
	Target
	svc layer.Service[Req, Rsp]
}

func (s *split[Req, Rsp]) add(t Target, svc layer.Service[Req, Rsp]) {
	s.parts = append(s.parts, part[Req, Rsp]{t, svc})
	s.total += uint64(t.Weight)
}

// Call sends the request to one of the parts. If that part rejects it, every other
// part is tried once.
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

// draw picks a part by weight among the ready parts.
//
// The first draw is among all parts and counts if that part is ready. Otherwise the
// second draw is among the ready parts. Each ready part gets its exact share of the
// ready weight: w/W + (1 − R/W)·w/R = w/R, where W is the weight of all parts and R
// that of the ready ones. While all are ready, only one part is polled.
//
// If no part is ready the first draw counts: the service below, such as a queue,
// decides whether the request waits or is rejected.
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

// drawFrom picks by weight among the parts for which wanted returns true, in one
// pass: each replaces the previous pick with the probability of its weight among
// the parts so far. It returns -1 if there are none.
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

// callOthers tries the parts other than i, which rejected the request with cause.
// The ready parts come first, by weight.
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
		// The split is closed only if every part is.
		if errors.Is(cause, layer.ErrClosed) {
			cause = err
		}
	}
	if n < len(s.parts) {
		cause = notClosed{cause} // the state of the others is unknown
	}
	var zero Rsp
	return zero, &layer.Error{
		Layer: layerName, Target: s.apex, Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("rejected by %d of %d targets", n, len(s.parts)), Err: cause,
	}
}
