package layer

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/internal/reqctx"
)

// errOutOfTime is the kind of rejection that a request gets when no time is left. It matches
// [ErrFailFast], because waiting in a queue does not help.
var errOutOfTime error = &kind{"out of time", ErrFailFast}

// DeadlineFromRequest applies the deadline that a request carries, such as the header grpc-timeout.
// read returns how much time the request has left, or false if there is no deadline. A time of 0 or
// less means that the deadline has passed. The layer should be at the top of a server's stack.
//
// Admission: a request is rejected if its deadline has passed.
//
// Cancellation: the request context gets the deadline, unless its own is earlier. The context ends
// when the response ends.
//
// Body: reading a body after the deadline fails.
//
// Errors: a rejection is an [Error] that matches [ErrNotReady], [context.DeadlineExceeded] and
// [ErrFailFast], because waiting does not help. After the deadline, an error of inner or of reading
// the body is wrapped in an Error of kind [ErrTimeout].
//
// Cost: one call of read, plus the cost of [Timeout] if there is a deadline.
//
// It panics if read is nil.
func DeadlineFromRequest[Req, Rsp any](read func(Req) (remaining time.Duration, ok bool), opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(read != nil, "DeadlineFromRequest: nil function")
	o := newOptions(opts)
	bodies := bodyAccessorOf[Rsp]()
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		d := &deadlineIn[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, options: o, read: read, bodies: bodies}
		d.rejected.counter = o.instruments.LayerRejections.With("layer", "deadline")
		d.limit = timeLimit{name: "deadline", target: o.target, prefix: "the caller's deadline", kind: ErrTimeout}
		d.limit.expired.counter = o.instruments.Timeouts.With("limit", "deadline")
		return d
	}
}

// DeadlineFromRequest adds a [DeadlineFromRequest] layer, which limits each request to the time
// that read returns for it.
func (s Stack[Req, Rsp]) DeadlineFromRequest(read func(Req) (remaining time.Duration, ok bool)) Stack[Req, Rsp] {
	return s.With("deadline_in", DeadlineFromRequest(read, s.opts...))
}

// deadlineIn is the service of [DeadlineFromRequest].
type deadlineIn[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	read     func(Req) (time.Duration, bool) // returns the time that the caller has left, if the request tells it
	bodies   bodyAccessor[Rsp]
	limit    timeLimit // what all requests' limits have in common: the texts and the counter
	rejected tally
}

// Call limits the request to the time that its caller has left, if the request tells it. It rejects a
// request whose time is over.
func (d *deadlineIn[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "deadline", d.limit.target)
	}
	remaining, ok := d.read(req)
	if !ok {
		return d.Service.Call(ctx, req)
	}
	if remaining <= 0 {
		d.rejected.inc()
		return rsp, rejectLate(d.limit.target, "the caller's time was over when the request came")
	}
	// due has its own limit, because each caller has another time left.
	r := &due{limit: overrun{&d.limit, remaining}}
	// With a request body that takes long to send, the limit pauses meanwhile: see InitPausable.
	if d.afterBody {
		r.InitPausable(ctx, remaining, &r.limit)
	} else {
		r.Init(ctx, remaining, &r.limit)
	}
	// d.bodies gives access to the response's body, whose end is the end of the limit.
	return callWithLimit(d.Service, req, &r.timed, &d.options, d.bodies, false) // not hidden: the limit also applies to the body
}

// due is a request's context with its time limit. Other layers share a limit between requests, but here
// each request has another one.
type due struct {
	timed
	limit overrun
}

// Describe returns how many requests came too late, and how many exceeded their time.
func (d *deadlineIn[Req, Rsp]) Describe() Node {
	return Node{Name: "deadline_in", State: State{{"rejected", d.rejected.n.Load()}, {"expired", d.limit.expired.n.Load()}}}
}

// DeadlineToRequest sends the remaining time to the next server. write returns a copy of the
// request that carries the given time, usually in a header. That is the time left until the
// context's deadline, minus margin. The layer should be at the bottom of a client's stack, next to
// the endpoint.
//
// Admission: a request is rejected if no more than margin is left.
//
// Cancellation: the context is passed unchanged. A request without a deadline is passed unchanged.
//
// Body: not touched.
//
// Errors: rejections match the same errors as in [DeadlineFromRequest]. Errors of inner are
// returned unchanged.
//
// Cost: one clock reading and one call of write.
//
// It panics if write is nil or margin is negative.
func DeadlineToRequest[Req, Rsp any](write func(Req, time.Duration) Req, margin time.Duration, opts ...Option[Rsp]) Layer[Req, Rsp] {
	checkAtLeast("DeadlineToRequest: margin", margin, 0)
	check(write != nil, "DeadlineToRequest: nil function")
	o := newOptions(opts)
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		d := &deadlineOut[Req, Rsp]{wrapper: wrapper[Req, Rsp]{next}, target: o.target, write: write, margin: margin}
		d.rejected.counter = o.instruments.LayerRejections.With("layer", "deadline")
		return d
	}
}

// DeadlineToRequest adds a [DeadlineToRequest] layer. It passes the remaining time minus margin to
// write, which returns a copy of the request with this time.
func (s Stack[Req, Rsp]) DeadlineToRequest(write func(Req, time.Duration) Req, margin time.Duration) Stack[Req, Rsp] {
	return s.With("deadline_out", DeadlineToRequest(write, margin, s.opts...))
}

// deadlineOut is the service of [DeadlineToRequest].
type deadlineOut[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	target   string
	write    func(Req, time.Duration) Req // returns a copy of the request that carries the time
	margin   time.Duration                // what is subtracted from the time until the deadline
	rejected tally
}

// Call writes the time until the deadline, less the margin, into the request. It rejects a request for
// which no time would be left.
func (d *deadlineOut[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if ctx.Err() != nil {
		// The request has ended before it was sent.
		return rsp, rejectDone(ctx, "deadline", d.target)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		// Without a deadline there is nothing to tell the server.
		return d.Service.Call(ctx, req)
	}
	remaining := time.Until(deadline)
	if remaining <= d.margin {
		// The server could not answer in time.
		d.rejected.inc()
		return rsp, rejectLate(d.target, fmt.Sprintf("%v are left, less than the margin of %v", max(remaining, 0), d.margin))
	}
	return d.Service.Call(ctx, d.write(req, remaining-d.margin))
}

// Describe returns the layer's node with its margin and counts.
func (d *deadlineOut[Req, Rsp]) Describe() Node {
	return Node{Name: "deadline_out", State: State{{"margin", d.margin}, {"rejected", d.rejected.n.Load()}}}
}

// rejectLate returns the rejection of a request that has no time left.
func rejectLate(target, reason string) error {
	return &Error{Layer: "deadline", Target: target, Kind: errOutOfTime, Reason: reason, Err: context.DeadlineExceeded}
}
