package layer

import (
	"context"
	"errors"
	"sync/atomic"
)

// Shed refuses requests of low [Priority] first when what is below it runs out
// of room: put it above a [Queue], a [Limit] or an [AdaptiveLimit]. It need not
// be told how much room they have; their refusals tell it. (Fixed shares of a
// fixed number would need that number, which an AdaptiveLimit changes, and
// leave room empty; a ratio of refusals over a window, as in DAGOR, refuses
// high and low alike until the window is over.) What refuses for the sake of
// one client, a [LimitBy] or a [RateLimitBy], belongs above it: Shed would take
// that for want of room.
//
// Admission: as long as inner refuses nobody, or all requests have one
// priority, nothing is refused here. When inner refuses a request while c
// others are in flight, every lower priority gets a ceiling: it is refused here
// once a share of c are in flight, of all priorities together. So whatever
// room there is above the ceiling is left to the higher ones, from the next
// request on, without a window to wait for.
//
// A higher one that came lately need not be refused first: the priority that
// inner refused, and those between, get ceilings as well, each that of the
// priority just below the next higher one that came. So no room stays empty for
// priorities that do not come. Lately is one to two minutes ago, or since before
// inner began to refuse.
//
// Each response that ends lifts the ceilings by a twentieth of a request, which
// is five per cent in the time that one request takes. A ceiling is taken away
// once it has come to c, or if twice what is in flight and four more are below
// it. Ready is that of the highest priority: inner's.
//
// How seldom the highest is refused: above a [Limit], where requests come at
// random at twice the rate that there is room for, so many per cent are served
// of critical ones, which need this much of the room, and of the normal rest:
//
//	limit                        2    4   10   20   64  256
//	critical, 20 % of the room  85   84   85   93   98   99
//	critical, 2 %               95   92   93   96   99   99
//	critical, 0.4 %             97   96   94   96   99   99
//	normal, beside 2 %          21   33   42   44   46   47
//	either, without Shed        38   42   46   48   49   50
//
// One place is a large share of less than ten. With a [Queue] between Shed and
// such a limit, what is kept free is a place in line, and hardly any work is
// lost: critical 92, normal 48 with a Queue of 4 above a limit of 4.
//
// Cancellation: a request whose context is done is refused.
//
// Body: a request counts as in flight until its response ended, see [WithCompletion].
// Give it the same end as the layer below that has the limit.
//
// Errors: a refusal is an [Error] of kind [ErrNotReady] that names the
// priority. A refusal by inner is passed as it is.
//
// Cost: one look into the context, two atomic operations, no allocation,
// refused or not; three more atomic operations while there are ceilings.
//
// A policy that is not valid is made so, see [ShedPolicy.Validate]: a share
// out of its range is the default, one above that of the next higher priority
// is lowered to it.
func Shed[Req, Rsp any](p ShedPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	shares := p.orDefault()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		s := &shed[Req, Rsp]{Service: next, options: o, refused: tally{to: o.to.LayerRejections.With("layer", "shed")}}
		s.ceilings.init(shares)
		for i := range s.refusals {
			s.refusals[i] = &Error{
				Layer: "shed", Target: o.target, Kind: errShed,
				Reason: "priority " + (PriorityBulk + Priority(i)).String() + ": the room that is left is for higher ones",
			}
		}
		return s
	}
}

type shed[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	ceilings shedCeilings
	refusals [priorities]*Error // shared; never changed
	refused  tally
	byRank   [priorities]atomic.Int64 // of those refused
}

func (s *shed[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "shed", s.target)
	}
	rank := PriorityFromContext(ctx).rank()
	if !s.ceilings.enter(rank) {
		s.refused.inc()
		s.byRank[rank].Add(1)
		return rsp, s.refusals[rank]
	}
	admitted, handed := true, false
	defer func() {
		switch {
		case !admitted:
			s.ceilings.inFlight.Add(-1)
		case !handed:
			defer s.ceilings.leave()
			s.drop(rsp, err)
		}
	}()
	if rsp, err = s.Service.Call(ctx, req); err != nil {
		if errors.Is(err, ErrNotReady) {
			admitted = false
			if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
				s.ceilings.short(rank)
			}
		}
		return rsp, err
	}
	rsp = s.complete(ctx, rsp, s)
	handed = true
	return rsp, nil
}

// Data and End make the layer the Observer of every response, so that none has
// to be made for each.
func (s *shed[Req, Rsp]) Data(int) {}

func (s *shed[Req, Rsp]) End(error) { s.ceilings.leave() }

func (s *shed[Req, Rsp]) Next() Service[Req, Rsp] { return s.Service }

func (s *shed[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", s.ceilings.inFlight.Load()}, {"refused", s.refused.n.Load()}}
	for rank := range s.byRank {
		name := (PriorityBulk + Priority(rank)).String()
		if n := s.byRank[rank].Load(); n > 0 {
			state = append(state, Attr{"refused_" + name, n})
		}
		if n, ok := s.ceilings.of(rank); ok {
			state = append(state, Attr{"ceiling_" + name, n})
		}
	}
	return Node{Name: "shed", State: state}
}
