package profiles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gotower/gotower/layer"
)

// Target is one part of a split.
type Target struct {
	// Authority is the service's key: the argument of the function that was passed to [New], and a
	// name in metrics. That function determines its form, such as "web", "web-v2.default:80" or
	// "default/backend/rule/0".
	Authority string

	Weight uint32 // share of the requests; a target with 0 receives none
}

// Validate returns the reason why a Router would leave the target out of a split, or nil if
// the target is valid.
func (t Target) Validate() error {
	if t.Authority == "" {
		return errors.New("no authority")
	}
	return nil
}

// Distribution determines which of several targets gets a request, and what happens to the share of
// one that is not ready.
type Distribution uint8

// The values of Distribution.
const (
	// FixedShares selects a target at random by weight. A target that is not ready, or rejects
	// requests, keeps its share: half of the requests fail if one side of a 50:50 split is down, as
	// with Envoy and the Gateway API. The other side gets no load that it was not meant for, and a
	// new version's metrics show its failures.
	FixedShares Distribution = iota

	// RandomAvailable selects one of the ready targets at random by weight, as linkerd does. If that
	// target rejects the request, the others are tried.
	RandomAvailable

	// FirstAvailable selects the first ready target and ignores weights. If that target rejects the
	// request, the next ones are tried.
	FirstAvailable
)

// String returns "fixed shares", "random available" or "first available".
func (d Distribution) String() string {
	return [...]string{"fixed shares", "random available", "first available"}[min(d, FirstAvailable)]
}

// split shares requests among targets in proportion to their weights. There is at least one
// target, except before the first profile.
type split[Req, Rsp any] struct {
	apex  string // the target that errors and explanations show: see Profile.Name
	parts []part[Req, Rsp]
	total uint64 // sum of all weights

	distribution Distribution
}

// part is a target of a split, its weight, and its service.
type part[Req, Rsp any] struct {
	Target
	svc   layer.Service[Req, Rsp]
	key   backendKey   // key of svc in Router.backendServices
	route *layer.Route // route of the requests to this target, if a backend of the split has labels; otherwise nil
}

func (p *part[Req, Rsp]) call(ctx context.Context, req Req) (Rsp, error) {
	if p.route != nil {
		ctx = layer.WithRoute(ctx, p.route)
	}
	return p.svc.Call(ctx, req)
}

// add adds a target, whose service is svc. key is that of svc in Router.backendServices.
func (s *split[Req, Rsp]) add(t Target, svc layer.Service[Req, Rsp], key backendKey) {
	s.parts = append(s.parts, part[Req, Rsp]{Target: t, svc: svc, key: key})
	s.total += uint64(t.Weight)
}

// Call sends the request to the target that draw returns. If that target rejects the request, Call
// tries every other target once, except with FixedShares.
func (s *split[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	// With a single target there is nothing to draw.
	if len(s.parts) == 1 {
		return s.parts[0].call(ctx, req)
	}
	i := s.draw()
	if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
		s.explain(explanation, i)
	}
	rsp, err := s.parts[i].call(ctx, req)
	// A request that was sent must not be sent to another target.
	switch {
	case err == nil || !errors.Is(err, layer.ErrNotReady):
		return rsp, err
	case s.distribution != FixedShares:
		return s.callOthers(ctx, req, i, err)
	// Another target may be open, so the split as a whole is not closed.
	case errors.Is(err, layer.ErrClosed) && !s.closed():
		err = notClosed{err}
	}
	return rsp, err
}

// closed reports whether all targets are closed.
func (s *split[Req, Rsp]) closed() bool {
	return !slices.ContainsFunc(s.parts, func(p part[Req, Rsp]) bool { return !errors.Is(layer.Poll(p.svc), layer.ErrClosed) })
}

// draw returns the index of a target, as the distribution of s requires.
//
// With RandomAvailable, the first draw is among all targets. If the drawn target is not ready, a second draw is among the
// ready targets. Therefore a ready target gets requests in proportion to its weight. W is the total weight, and R is the
// weight of the ready targets. A ready target of weight w is drawn with the probability w/W + (1 − R/W)·w/R = w/R.
//
// If no target is ready, draw returns the target of the first draw, or the first target with FirstAvailable. That
// target's service, such as a queue, then waits or rejects the request.
func (s *split[Req, Rsp]) draw() int {
	if s.distribution == FirstAvailable {
		// drawFrom knows the distribution too, and takes the first ready target here. max turns its -1 into the first target.
		return max(0, s.drawFrom(func(i int) bool { return layer.Poll(s.parts[i].svc) == nil }))
	}
	first := 0
	// Walk along the weights to the target whose part has the number n.
	for n := rand.Uint64N(s.total); n >= uint64(s.parts[first].Weight); first++ {
		n -= uint64(s.parts[first].Weight)
	}
	if s.distribution == FixedShares || layer.Poll(s.parts[first].svc) == nil {
		return first
	}
	if i := s.drawFrom(func(i int) bool { return i != first && layer.Poll(s.parts[i].svc) == nil }); i >= 0 {
		return i
	}
	return first
}

// drawFrom returns the index of a target for which wanted returns true, chosen at random by weight.
// With FirstAvailable, it returns the first such target. If wanted returns false for all targets,
// it returns -1. It takes one pass: each target replaces the previous choice with a probability
// that is its weight divided by the total weight so far.
func (s *split[Req, Rsp]) drawFrom(wanted func(int) bool) int {
	drawn, total := -1, uint64(0)
	for i := range s.parts {
		if !wanted(i) {
			continue
		}
		if s.distribution == FirstAvailable {
			return i
		}
		weight := uint64(s.parts[i].Weight)
		total += weight
		// The first wanted target is always taken, and each later one with its share of the weights so far.
		if rand.Uint64N(total) < weight {
			drawn = i
		}
	}
	return drawn
}

// callOthers tries all targets except i, which has rejected the request with the error cause.
// Ready targets are tried first, and drawFrom selects among them. If all targets reject the
// request, callOthers returns a rejection.
func (s *split[Req, Rsp]) callOthers(ctx context.Context, req Req, i int, cause error) (Rsp, error) {
	tried := make([]bool, len(s.parts))
	tried[i] = true
	n := 1
	for ; n < len(s.parts) && ctx.Err() == nil; n++ {
		// Among the targets that are left, those that are ready come first.
		if i = s.drawFrom(func(i int) bool { return !tried[i] && layer.Poll(s.parts[i].svc) == nil }); i < 0 {
			i = s.drawFrom(func(i int) bool { return !tried[i] })
		}
		tried[i] = true
		if explanation := layer.PickInfoFromContext(ctx).Explanation; explanation != nil {
			s.explain(explanation, i)
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
