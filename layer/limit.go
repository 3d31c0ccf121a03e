package layer

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Limit admits at most n requests at a time and rejects others at once. If requests should wait
// instead, place a [Queue] above it.
//
// Admission: a request is admitted while fewer than n are in flight. The count is exact under
// concurrency. Ready waits for a free slot, then for inner.
//
// Cancellation: a request is rejected if its context has ended. A canceled request's slot stays
// taken until the request ends.
//
// Body: a request keeps its slot until its response ends, see [WithCompletion].
//
// Errors: a rejection is an [Error] of kind [ErrNotReady].
//
// Cost: two atomic operations per request and no allocation. All rejections return the same
// error.
//
// If n is 0, every request is rejected. A negative n panics. To limit each tenant or client
// separately, use a [Cache] that makes a Limit per key. [AdaptiveLimit] finds the limit from the
// latency.
func Limit[Req, Rsp any](n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Limit", n, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &limit[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			max:      int64(n),
			rejected: tally{counter: o.instruments.LayerRejections.With("layer", "limit")},
			full: &Error{
				Layer: "limit", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight", n),
			},
		}
	}
}

// Limit adds a [Limit] layer, which admits at most n requests at a time.
func (s Stack[Req, Rsp]) Limit(n int) Stack[Req, Rsp] {
	return s.With("limit", Limit[Req](n, s.opts...))
}

// limit is the service of [Limit].
type limit[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	max      int64
	inFlight atomic.Int64
	freed    notify.Broadcast
	full     *Error // returned by every rejection; immutable
	rejected tally
}

// Ready waits until fewer requests than the limit are in flight and the service is ready.
func (l *limit[Req, Rsp]) Ready(ctx context.Context) error {
	return awaitRoom(ctx, &l.freed, l.hasRoom, l.Service)
}

// Call sends req if fewer requests than the limit are in flight. Otherwise it rejects the request.
func (l *limit[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "limit", l.target)
	}
	if !acquire(&l.inFlight, l.max) {
		l.rejected.inc()
		return rsp, l.full
	}
	return callUntil(ctx, l.Service, req, &l.options, l)
}

// hasRoom reports whether another request may start.
func (l *limit[Req, Rsp]) hasRoom() bool { return l.inFlight.Load() < l.max }

// Data implements [Observer] and does nothing. The service itself is the Observer of every response,
// because a separate one would be an allocation.
func (l *limit[Req, Rsp]) Data(int) {}

// End implements [Observer]: the response has ended, so its slot is free.
func (l *limit[Req, Rsp]) End(error) {
	l.inFlight.Add(-1)
	l.freed.Wake()
}

// Describe returns the limit, and the numbers of requests in flight and rejected.
func (l *limit[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", l.inFlight.Load()}, {"max", l.max}}
	if n := l.rejected.n.Load(); n > 0 {
		state = append(state, Attr{"rejected", n})
	}
	return Node{Name: "limit", State: state}
}
