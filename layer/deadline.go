package layer

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// errOutOfTime is the kind of the rejection of a request that has no time left. It matches
// [ErrFailFast], because waiting in a queue does not help.
var errOutOfTime error = &kind{"out of time", ErrFailFast}

// DeadlineFromRequest applies the deadline that a request carries, such as the header
// grpc-timeout. The function read returns the time that the request has left, or false if
// it has no deadline. A time of 0 or less means that the deadline has passed. Place the
// layer at the top of a server's stack.
//
// Admission: a request is rejected if its deadline has passed.
//
// Cancellation: the context of the request gets the deadline, unless it has an earlier one.
// The context ends when the response ends.
//
// Body: reading a body after the deadline fails.
//
// Errors: a rejection is an [Error] that matches [ErrNotReady], [context.DeadlineExceeded]
// and [ErrFailFast], because waiting does not help. After the deadline, an error of inner
// or of reading the body is wrapped in an Error of kind [ErrTimeout].
//
// Cost: one call of read; for a request with a deadline also the cost of [Timeout].
//
// It panics if read is nil.
func DeadlineFromRequest[Req, Rsp any](read func(Req) (left time.Duration, ok bool), opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(read != nil, "DeadlineFromRequest: nil function")
	o := newOptions(opts)
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		d := &deadlineIn[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, read: read, bodies: bodies}
		d.rejected.to = o.to.LayerRejections.With("layer", "deadline")
		d.limit = timeLimit{name: "deadline", target: o.target, what: "the caller's deadline", is: ErrTimeout}
		d.limit.expired.to = o.to.Timeouts.With("limit", "deadline")
		return d
	}
}

type deadlineIn[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	read     func(Req) (time.Duration, bool)
	bodies   bodyAccessor[Rsp]
	limit    timeLimit
	rejected tally
}

func (d *deadlineIn[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "deadline", d.limit.target)
	}
	left, ok := d.read(req)
	if !ok {
		return d.Service.Call(ctx, req)
	}
	if left <= 0 {
		d.rejected.inc()
		return rsp, rejectLate(d.limit.target, "the caller's time was over when the request came")
	}
	r := &due{limit: overrun{&d.limit, left}}
	r.Init(ctx, left, &r.limit)
	return callWithLimit(d.Service, req, &r.timed, &d.options, d.bodies, false)
}

// due is the context of one request and its time limit. Each request has a limit of its own,
// because each request carries another deadline.
type due struct {
	timed
	limit overrun
}

func (d *deadlineIn[Req, Rsp]) Describe() Node {
	return Node{Name: "deadline_in", State: State{{"rejected", d.rejected.n.Load()}, {"expired", d.limit.expired.n.Load()}}}
}

// DeadlineToRequest sends the remaining time to the next server. The function write returns
// a copy of the request that carries the given time, for example in a header. That time is
// the time until the deadline of the context, minus margin. Place the layer at the bottom
// of a client's stack, next to the endpoint.
//
// Admission: a request is rejected if its remaining time is not longer than margin.
//
// Cancellation: the context is passed unchanged. A request without a deadline is passed
// unchanged.
//
// Body: not touched.
//
// Errors: a rejection matches the same errors as in [DeadlineFromRequest]. Errors of inner
// are returned unchanged.
//
// Cost: one clock reading and the call of write.
//
// It panics if write is nil or margin is negative.
func DeadlineToRequest[Req, Rsp any](write func(Req, time.Duration) Req, margin time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("DeadlineToRequest: margin", margin, 0)
	check(write != nil, "DeadlineToRequest: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		d := &deadlineOut[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, target: o.target, write: write, margin: margin}
		d.rejected.to = o.to.LayerRejections.With("layer", "deadline")
		return d
	}
}

type deadlineOut[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	write    func(Req, time.Duration) Req
	margin   time.Duration
	rejected tally
}

func (d *deadlineOut[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		return rsp, rejectDone(ctx, "deadline", d.target)
	}
	at, ok := ctx.Deadline()
	if !ok {
		return d.Service.Call(ctx, req)
	}
	left := time.Until(at)
	if left <= d.margin {
		d.rejected.inc()
		return rsp, rejectLate(d.target, fmt.Sprintf("%v are left, less than the margin of %v", max(left, 0), d.margin))
	}
	return d.Service.Call(ctx, d.write(req, left-d.margin))
}

func (d *deadlineOut[Req, Rsp]) Describe() Node {
	return Node{Name: "deadline_out", State: State{{"margin", d.margin}, {"rejected", d.rejected.n.Load()}}}
}

func rejectLate(target, reason string) error {
	return &Error{Layer: "deadline", Target: target, Kind: errOutOfTime, Reason: reason, Err: context.DeadlineExceeded}
}
