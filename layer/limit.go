package layer

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/internal/wake"
)

// Limit admits at most n requests at a time and refuses the rest at once. Put
// a [Queue] above it to wait.
//
// Admission: exact under any number of callers. Ready waits for a free slot,
// then for inner.
//
// Cancellation: a request whose context is done is refused; one in flight
// keeps its slot until it ended.
//
// Body: a slot is held until the response ended, see [WithCompletion].
//
// Errors: a refusal is an [Error] of kind [ErrNotReady].
//
// Cost: two atomic operations a request, no allocation. A refusal costs no
// allocation either: all refusals of one limit are the same error.
//
// An n of 0 or less admits nothing. For a limit that differs from key to key
// see [LimitBy], for one that finds its size by itself [AdaptiveLimit].
func Limit[Req, Rsp any](n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &limit[Req, Rsp]{
			Service: next,
			options: o,
			max:     int64(max(n, 0)),
			refused: tally{to: o.to.LayerRejections.With("layer", "limit")},
			full: &Error{
				Layer: "limit", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight", max(n, 0)),
			},
		}
	}
}

type limit[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	max      int64
	inFlight atomic.Int64
	freed    wake.Broadcast
	full     *Error // shared by every refusal; never changed
	refused  tally
}

func (l *limit[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if err := l.freed.Wait(ctx, l.hasRoom); err != nil {
			return err
		}
		if err := l.Service.Ready(ctx); err != nil {
			return err
		}
		if l.hasRoom() {
			return nil
		}
	}
}

func (l *limit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "limit", l.target)
	}
	if !l.take() {
		l.refused.inc()
		return rsp, l.full
	}
	return callUntil(ctx, l.Service, req, &l.options, l)
}

func (l *limit[Req, Rsp]) take() bool {
	for {
		n := l.inFlight.Load()
		if n >= l.max {
			return false
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (l *limit[Req, Rsp]) hasRoom() bool { return l.inFlight.Load() < l.max }

// Data and End make the limit the Observer of every response it admitted, so
// that none has to be made for each.
func (l *limit[Req, Rsp]) Data(int) {}

func (l *limit[Req, Rsp]) End(error) {
	l.inFlight.Add(-1)
	l.freed.Wake()
}

func (l *limit[Req, Rsp]) Next() Service[Req, Rsp] { return l.Service }

func (l *limit[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", l.inFlight.Load()}, {"max", l.max}}
	if n := l.refused.n.Load(); n > 0 {
		state = append(state, Attr{"refused", n})
	}
	return Node{Name: "limit", State: state}
}
