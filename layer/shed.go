package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// ShedPolicy says how much of the room that inner turned out to have a
// priority may fill, after inner refused a higher one, or while a higher one
// comes: see [Shed]. Of a share below 1 at least one place is kept free, and with
// 1 none. The zero value of a field stands for its default.
type ShedPolicy struct {
	Normal float64 // share left to normal requests, more than 0 to 1; default 0.9
	Low    float64 // to low ones, at most Normal; default 0.75
	Bulk   float64 // to bulk ones, at most Low; default 0.5
}

// Validate returns an error that names the field that is wrong.
func (p ShedPolicy) Validate() error {
	for _, f := range []struct {
		name  string
		share float64
	}{{"Normal", p.Normal}, {"Low", p.Low}, {"Bulk", p.Bulk}} {
		if !(f.share >= 0 && f.share <= 1) {
			return fmt.Errorf("ShedPolicy.%s is %v, must be 0 to 1", f.name, f.share)
		}
	}
	set := p.filled()
	switch {
	case set.Low > set.Normal:
		return fmt.Errorf("ShedPolicy.Low is %v, must be at most Normal, %v", set.Low, set.Normal)
	case set.Bulk > set.Low:
		return fmt.Errorf("ShedPolicy.Bulk is %v, must be at most Low, %v", set.Bulk, set.Low)
	}
	return nil
}

// filled returns p with defaults in place of zero fields. A default is at most
// the share of the next higher priority.
func (p ShedPolicy) filled() ShedPolicy {
	p.Normal = cmp.Or(p.Normal, 0.9)
	p.Low = cmp.Or(p.Low, min(0.75, p.Normal))
	p.Bulk = cmp.Or(p.Bulk, min(0.5, p.Low))
	return p
}

// Shed rejects requests of low [Priority] first when inner runs out of room.
// Place it above a [Queue], [Limit] or [AdaptiveLimit]. It learns their
// capacity from their rejections. Place keyed limits ([LimitBy], [RateLimitBy])
// above it, because their rejections say nothing about capacity.
//
// Admission: nothing is rejected here while inner rejects nothing or all
// requests have one priority. When inner rejects a request while c others are
// in flight, every lower priority gets a ceiling, a share of c. A request is
// rejected while that many are in flight, of all priorities together. The room
// above the ceiling is thus left to higher priorities. If a higher priority
// came within the last one to two minutes, the rejected priority gets a
// ceiling, too. Each response that ends raises the ceilings by a twentieth of a
// request. A ceiling is removed when it reaches c, or when demand is far below
// it. Ready is inner's.
//
// Cancellation: a request whose context has ended is rejected.
//
// Body: a request is in flight until its response ends, see [WithCompletion].
// Use the same end as the limit below.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady] that names the
// priority. Rejections of inner are returned unchanged.
//
// Cost: one context look-up and two atomic operations, three more while there
// are ceilings; no allocation.
func Shed[Req, Rsp any](p ShedPolicy, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	checkPolicy(p)
	p = p.filled()
	shares := [priorities - 1]float64{p.Bulk, p.Low, p.Normal}
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

// shedCeilings is the arithmetic of Shed: what is in flight, and at how much
// of it a priority is refused. The highest has no ceiling.
type shedCeilings struct {
	shares   [priorities - 1]float64
	inFlight atomic.Int64

	// In parts of a request, so that they can rise by less than one. room is
	// what was in flight when inner refused last: a ceiling as high as that is
	// none.
	ceilings [priorities - 1]atomic.Int64
	room     atomic.Int64

	came shedComers
}

const (
	shedParts = 20            // of a request; one is what a ceiling rises by
	shedOpen  = math.MaxInt64 // no ceiling
)

func (c *shedCeilings) init(shares [priorities - 1]float64) {
	c.shares = shares
	for i := range c.ceilings {
		c.ceilings[i].Store(shedOpen)
	}
	c.came.start = time.Now()
}

// enter counts a request in, unless that is above the ceiling of its priority.
func (c *shedCeilings) enter(rank int) bool {
	c.came.add(rank)
	if rank >= len(c.ceilings) {
		c.inFlight.Add(1)
		return true
	}
	for {
		n := c.inFlight.Load()
		if (n+1)*shedParts > c.ceilings[rank].Load() {
			return false
		}
		if c.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// short is told that inner refused a request of this rank, which is still
// counted in. The lower ones leave it their share. Its own and those above it
// have filled what there is, too: each leaves the share of the next higher one
// that comes at all, before that is refused.
func (c *shedCeilings) short(rank int) {
	others := c.inFlight.Load() - 1
	c.room.Store(others * shedParts)
	came := c.came.ranks()
	for i := range c.ceilings {
		share := c.shares[i]
		if i >= rank {
			higher := bits.TrailingZeros32(came >> (i + 1) << (i + 1))
			if higher >= priorities {
				return
			}
			share = c.shares[higher-1]
		}
		c.lower(i, others, share)
	}
}

// lower gives a rank its share of what is in flight, but for one place at the
// least, unless all of it is its share. One of the rank may always be in flight:
// its response is what lifts the ceilings again.
func (c *shedCeilings) lower(rank int, others int64, share float64) {
	to := int64(float64(others) * share * shedParts)
	if share < 1 {
		to = min(to, (others-1)*shedParts)
	}
	to = max(to, shedParts)
	for {
		at := c.ceilings[rank].Load()
		if at <= to || c.ceilings[rank].CompareAndSwap(at, to) {
			return
		}
	}
}

// leave counts out a request whose response ended, and lifts the ceilings. One
// that has come to where inner refused is taken away: so the last places are not
// filled for long before inner refuses again, or shows that it has more.
func (c *shedCeilings) leave() {
	n := c.inFlight.Add(-1)
	for i := range c.ceilings {
		for {
			at := c.ceilings[i].Load()
			if at == shedOpen {
				break
			}
			to := at + 1
			if to >= c.room.Load() || at > 2*shedParts*(n+2) {
				to = shedOpen
			}
			if c.ceilings[i].CompareAndSwap(at, to) {
				break
			}
		}
	}
}

// of returns a ceiling in requests, if there is one.
func (c *shedCeilings) of(rank int) (float64, bool) {
	if rank >= len(c.ceilings) {
		return 0, false
	}
	at := c.ceilings[rank].Load()
	return float64(at) / shedParts, at != shedOpen
}

// shedComers is which priorities came in this minute or the one before. The
// clock is read when inner refuses only.
type shedComers struct {
	start    time.Time
	turned   atomic.Int64 // when this minute began, since start
	now, old atomic.Uint32
}

func (c *shedComers) add(rank int) {
	if bit := uint32(1) << rank; c.now.Load()&bit == 0 {
		c.now.Or(bit)
	}
}

// ranks returns a set of bits.
func (c *shedComers) ranks() uint32 {
	now, turned := int64(time.Since(c.start)), c.turned.Load()
	if now-turned >= int64(time.Minute) && c.turned.CompareAndSwap(turned, now) {
		c.old.Store(c.now.Swap(0))
	}
	return c.now.Load() | c.old.Load()
}
