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

// Call sends the request to one of the parts. If that refuses, which leaves
// the request untouched, every other part is asked once.
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

// draw picks a part by weight among those that are ready.
//
// The first draw is over all, and stands if that part is ready; otherwise the
// second is over the ready ones. That gives each ready part its exact share of
// the ready weight, and polls one part where all are ready:
// w/W + (1 − R/W)·w/R = w/R, where W is the weight of all and R of the ready.
//
// If none is ready the first draw stands too: what is below it, such as a
// queue, decides whether the request waits or is refused.
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

// drawFrom picks by weight among the parts that are wanted, in one pass: each
// takes the place of those before it with the chance that its weight has among
// them. It returns -1 if none is wanted.
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

// callOthers asks the parts other than i, which refused with cause: the ready
// ones first, by weight.
func (s *split[Req, Rsp]) callOthers(ctx context.Context, req Req, i int, cause error) (Rsp, error) {
	asked := make([]bool, len(s.parts))
	asked[i] = true
	n := 1
	for ; n < len(s.parts) && ctx.Err() == nil; n++ {
		if i = s.drawFrom(func(i int) bool { return !asked[i] && layer.Poll(s.parts[i].svc) == nil }); i < 0 {
			i = s.drawFrom(func(i int) bool { return !asked[i] })
		}
		asked[i] = true
		if why := layer.PickInfoFromContext(ctx).Explanation; why != nil {
			s.explain(why, i)
		}
		rsp, err := s.parts[i].svc.Call(ctx, req)
		if err == nil || !errors.Is(err, layer.ErrNotReady) {
			return rsp, err
		}
		// The split is closed for good only if every part is.
		if errors.Is(cause, layer.ErrClosed) {
			cause = err
		}
	}
	if n < len(s.parts) {
		cause = unclosed{cause} // nobody knows of the others
	}
	var none Rsp
	return none, &layer.Error{
		Layer: layerName, Target: s.apex, Kind: layer.ErrNotReady,
		Reason: fmt.Sprintf("refused by %d of %d targets", n, len(s.parts)), Err: cause,
	}
}
