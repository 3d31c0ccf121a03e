package layer

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Limit admits at most n requests at a time and rejects others at once. Place a [Queue]
// above it to let requests wait.
//
// Admission: a request is admitted while fewer than n are in flight. The count is exact
// under concurrency. Ready waits for a free slot, then for inner.
//
// Cancellation: a request is rejected if its context has ended. The slot of a canceled
// request stays taken until the request ends.
//
// Body: a request keeps its slot until its response ends, see [WithCompletion].
//
// Errors: a rejection is an [Error] of kind [ErrNotReady].
//
// Cost: two atomic operations per request and no allocation. All rejections return the same
// error.
//
// If n is 0, every request is rejected. A negative n panics. A [Cache] that makes a Limit
// for each key limits the requests of each tenant or client. See [AdaptiveLimit] for a
// limit that follows the latency.
func Limit[Req, Rsp any](n int, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("Limit", n, 0)
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		return &limit[Req, Rsp]{
			wrapper:  wrapper[Req, Rsp]{next},
			options:  o,
			max:      int64(n),
			rejected: tally{to: o.to.LayerRejections.With("layer", "limit")},
			full: &Error{
				Layer: "limit", Target: o.target, Kind: errShed,
				Reason: fmt.Sprintf("%d of %[1]d in flight", n),
			},
		}
	}
}

type limit[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	max      int64
	inFlight atomic.Int64
	freed    notify.Broadcast
	full     *Error // returned by every rejection; immutable
	rejected tally
}

func (l *limit[Req, Rsp]) Ready(ctx context.Context) error {
	return awaitRoom(ctx, &l.freed, l.hasRoom, l.Service)
}

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

func (l *limit[Req, Rsp]) hasRoom() bool { return l.inFlight.Load() < l.max }

// Data does nothing, because the layer needs only the end of a response. Data is part of
// [Observer], which the service itself implements to save an allocation.
func (l *limit[Req, Rsp]) Data(int) {}

func (l *limit[Req, Rsp]) End(error) {
	l.inFlight.Add(-1)
	l.freed.Wake()
}

func (l *limit[Req, Rsp]) Describe() Node {
	state := State{{"in_flight", l.inFlight.Load()}, {"max", l.max}}
	if n := l.rejected.n.Load(); n > 0 {
		state = append(state, Attr{"rejected", n})
	}
	return Node{Name: "limit", State: state}
}
