package layer

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gotower/gotower/internal/reqctx"
)

// ShedPolicy configures a [Shed]. Each field is for one priority. Its requests are rejected while
// the requests in flight, of all priorities, use at least this share of the capacity. Critical
// requests use the share 1 and are never rejected. Zero fields use their defaults.
type ShedPolicy struct {
	Normal float64 // above 0, at most 1; default 0.9
	Low    float64 // at most Normal; default 0.75, or Normal if that is less
	Bulk   float64 // at most Low; default 0.5, or Low if that is less
}

// Validate returns an error that names the first field that is out of range, or nil.
func (p ShedPolicy) Validate() error {
	// The shares as they were written. 0 means the default here.
	for _, f := range []struct {
		name  string
		share float64
	}{{"Normal", p.Normal}, {"Low", p.Low}, {"Bulk", p.Bulk}} {
		if !(f.share >= 0 && f.share <= 1) {
			return fmt.Errorf("ShedPolicy.%s is %v, must be 0 to 1", f.name, f.share)
		}
	}
	// With the defaults, because one of them may contradict a field that is set.
	set := p.filled()
	switch {
	case set.Low > set.Normal:
		return fmt.Errorf("ShedPolicy.Low is %v, must be at most Normal, %v", set.Low, set.Normal)
	case set.Bulk > set.Low:
		return fmt.Errorf("ShedPolicy.Bulk is %v, must be at most Low, %v", set.Bulk, set.Low)
	}
	return nil
}

// filled returns p with the defaults in place of zero fields. No default exceeds the share of the
// next higher priority.
func (p ShedPolicy) filled() ShedPolicy {
	p.Normal = cmp.Or(p.Normal, 0.9)
	p.Low = cmp.Or(p.Low, min(0.75, p.Normal))
	p.Bulk = cmp.Or(p.Bulk, min(0.5, p.Low))
	return p
}

// Shed rejects requests of low [Priority] before the layers below run out of capacity. It should
// be above a [Limit], [AdaptiveLimit] or [Queue].
//
// Admission: a request is rejected while the requests in flight, of all priorities, use its
// priority's share in the [ShedPolicy]. At least one request is admitted. The capacity is that of
// the nearest Limit or AdaptiveLimit below, plus that of the Queues in between. Without a Limit
// or AdaptiveLimit, every request is admitted. Ready is forwarded.
//
// Cancellation: a request is rejected if its context has ended.
//
// Body: a request is in flight until its response ends, see [WithCompletion]. You should use the
// same Completion as the limit below.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady] that names the priority. Rejections of
// inner are returned unchanged.
//
// Cost: one context look-up and three atomic operations; no allocation.
//
// It panics if the policy is invalid.
func Shed[Req, Rsp any](p ShedPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		s := &shed[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next}, options: o, capacity: capacityOf(next),
			shares:   [priorities]float64{p.Bulk, p.Low, p.Normal, 1},
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "shed")},
		}
		// The index is the rank of the priority.
		for i := range s.rejections {
			s.rejections[i] = &Error{
				Layer: "shed", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("the share of priority %v is full", PriorityBulk+Priority(i)),
			}
		}
		return s
	}
}

// Shed adds a [Shed] layer, which rejects requests of low priority before the capacity is used up.
func (s Stack[Req, Rsp]) Shed(p ShedPolicy) Stack[Req, Rsp] {
	return s.With("shed", Shed[Req](p, s.opts...))
}

// capacityOf looks in svc for the nearest [Limit] or [AdaptiveLimit], and returns a function that
// returns how many requests svc admits at a time: that limit, which may change, plus the capacity of
// the Queues above it. It returns nil if there is none.
func capacityOf[Req, Rsp any](svc Service[Req, Rsp]) func() int64 {
	switch s := svc.(type) {
	case *limit[Req, Rsp]:
		return func() int64 { return s.max }
	case *adaptiveLimit[Req, Rsp]:
		return s.gate.limit.Load
	case *shared[Req, Rsp]:
		if capacity := capacityOf(s.layer.service); capacity != nil {
			return capacity
		}
	case *queue[Req, Rsp]:
		capacity := capacityOf(s.Service)
		if capacity == nil {
			return nil
		}
		// The minimum keeps the sum from overflowing.
		return func() int64 { return s.waiters.capacity + min(capacity(), math.MaxInt64-s.waiters.capacity) }
	}
	// Any other layer admits as many requests as the one below it.
	if inner := wrappedBy(svc); inner != nil {
		return capacityOf(inner)
	}
	return nil
}

// shed is the service of [Shed].
type shed[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	capacity   func() int64 // returns the capacity below; nil if it is unknown
	shares     [priorities]float64
	inFlight   atomic.Int64
	rejections [priorities]*Error // the rejection for each priority; immutable
	rejected   tally
	byRank     [priorities]atomic.Int64 // the number of rejected requests of each priority
}

// Call sends req if there is capacity for requests of its priority. Otherwise it rejects the request.
func (s *shed[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "shed", s.target)
	}
	// The priority determines up to which share of the capacity a request is admitted.
	rank := PriorityFromContext(ctx).rank()
	if !s.enter(rank) {
		s.rejected.inc()
		s.byRank[rank].Add(1)
		return rsp, s.rejections[rank]
	}
	return callUntil(ctx, s.Service, req, &s.options, s)
}

// enter counts a request as in flight and returns true, unless the share of its priority is used up.
// rank is the rank of the priority.
func (s *shed[Req, Rsp]) enter(rank int) bool {
	// Such requests are never rejected, but count towards the shares of others.
	if s.capacity == nil || s.shares[rank] >= 1 {
		s.inFlight.Add(1)
		return true
	}
	// At least one request is admitted, even if the share is less than one.
	return acquire(&s.inFlight, max(int64(float64(s.capacity())*s.shares[rank]), 1))
}

// Data implements [Observer] and does nothing. The service itself is the Observer of every response,
// because a separate one would be an allocation.
func (s *shed[Req, Rsp]) Data(int) {}

// End implements [Observer]: the response has ended.
func (s *shed[Req, Rsp]) End(error) { s.inFlight.Add(-1) }

// Describe returns the capacity, and the numbers of requests in flight and rejected, by priority.
func (s *shed[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", s.inFlight.Load()}}
	if s.capacity != nil {
		state = append(state, Attr{"capacity", s.capacity()})
	}
	state = append(state, Attr{"rejected", s.rejected.n.Load()})
	for rank := range s.byRank {
		if n := s.byRank[rank].Load(); n > 0 {
			state = append(state, Attr{"rejected_" + (PriorityBulk + Priority(rank)).String(), n})
		}
	}
	return Node{Name: "shed", State: state}
}
