package layer

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Gate admits requests as its owner decides, such as a health check or an
// operator. It is open, limited or shut. [Gated] puts one into a stack.
//
// All methods are safe for concurrent use. An open gate costs one atomic load.
type Gate struct {
	now     atomic.Pointer[gatePeriod] // nil: open, and never changed
	changed notify.Broadcast
}

// NewGate returns a gate that is open.
func NewGate() *Gate { return &Gate{} }

// Open lets every request through.
func (g *Gate) Open() { g.change(&gatePeriod{mode: gateOpen}) }

// Limit admits n more requests, and then none. A place is not returned when its
// request ends: call Limit again, open or shut the gate, or call
// [Permit.Release]. An n of 0 or less shuts the gate.
func (g *Gate) Limit(n int) { g.change(newGateLimit(n)) }

// Close lets no request through. Those that have passed are not disturbed.
func (g *Gate) Close() { g.change(&gatePeriod{mode: gateShut}) }

func (g *Gate) change(to *gatePeriod) {
	g.now.Store(to)
	g.changed.Wake()
}

// TryAcquire asks to be let through, and does not wait. Where it returns false, the
// request stays outside.
func (g *Gate) TryAcquire() (Permit, bool) {
	p := g.now.Load()
	if p == nil || p.enter() {
		return Permit{g, p}, true
	}
	return Permit{}, false
}

func (g *Gate) hasRoom() bool {
	p := g.now.Load()
	return p == nil || p.hasRoom()
}

func (g *Gate) state() State {
	p := g.now.Load()
	if p == nil {
		return State{{"state", gateOpen}}
	}
	state := State{{"state", p.mode}}
	if p.mode == gateLimited {
		state = append(state, Attr{"left", p.left.Load()}, Attr{"of", p.places})
	}
	return state
}

// Permit is what a request holds that was let through a [Gate].
type Permit struct {
	gate   *Gate
	period *gatePeriod
}

// Release returns the place for another request. Call it at most once. It does
// nothing if the gate was open, or was changed since.
func (p Permit) Release() {
	if p.period != nil && p.period.giveBack() {
		p.gate.changed.Wake()
	}
}

// gateMode is the state of a gate.
type gateMode uint8

const (
	gateOpen gateMode = iota
	gateLimited
	gateShut
)

func (m gateMode) String() string { return [...]string{"open", "limited", "shut"}[m] }

// gatePeriod is the time between two changes of a gate. It is never used
// again: what comes back late to a period that is over changes nothing.
type gatePeriod struct {
	mode   gateMode
	places int64 // while limited
	left   atomic.Int64
}

func newGateLimit(n int) *gatePeriod {
	if n <= 0 {
		return &gatePeriod{mode: gateShut}
	}
	p := &gatePeriod{mode: gateLimited, places: int64(n)}
	p.left.Store(int64(n))
	return p
}

func (p *gatePeriod) enter() bool {
	if p.mode != gateLimited {
		return p.mode == gateOpen
	}
	for {
		n := p.left.Load()
		if n <= 0 {
			return false
		}
		if p.left.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// giveBack reports whether there is a place more. One that is returned twice
// makes no more of them than there were.
func (p *gatePeriod) giveBack() bool {
	if p.mode != gateLimited {
		return false
	}
	for {
		n := p.left.Load()
		if n >= p.places {
			return false
		}
		if p.left.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (p *gatePeriod) hasRoom() bool {
	return p.mode == gateOpen || p.mode == gateLimited && p.left.Load() > 0
}

// Gated lets requests through g. Several services may share a gate.
//
// Admission: as g decides, at once. Ready waits until g admits a request, then
// for inner.
//
// Cancellation: a request whose context has ended is rejected. Shutting the
// gate does not affect requests in flight.
//
// Body: not touched.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady]. A rejection by inner
// returns the place.
//
// Cost: one atomic load while the gate is open, no allocation.
//
// With a nil gate the layer does nothing.
func Gated[Req, Rsp any](g *Gate, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(g != nil, "Gated: nil Gate")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &gated[Req, Rsp]{
			Service:  next,
			gate:     g,
			target:   o.target,
			rejected: tally{to: o.to.LayerRejections.With("layer", "gate")},
			shut:     &Error{Layer: "gate", Target: o.target, Kind: ErrNotReady, Reason: "shut"},
			taken:    &Error{Layer: "gate", Target: o.target, Kind: ErrNotReady, Reason: "limited, and every place is taken"},
		}
	}
}

type gated[Req, Rsp any] struct {
	Service[Req, Rsp]
	gate        *Gate
	target      string
	rejected    tally
	shut, taken *Error // shared by every rejection; never changed
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
	if reqctx.Ended(ctx) {
		return none, rejectDone(ctx, "gate", g.target)
	}
	pass, ok := g.gate.TryAcquire()
	if !ok {
		g.rejected.inc()
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
	return Node{Name: "gate", State: append(g.gate.state(), Attr{"rejected", g.rejected.n.Load()})}
}
