package layer

import "context"

// Drain counts the requests that are open for d, and refuses new ones once d
// drains. Put it outermost in a stack. One [Drainer] may serve several stacks,
// and one layer several services.
//
// Admission: everything until [Drainer.Drain] is called, nothing after that:
// no request is admitted once Drain has begun, and none that was admitted is
// missed by it. Ready waits for inner, and ends with [ErrClosed] when draining
// begins.
//
// Cancellation: a request whose context is done is refused; one in flight is
// open until it ended. Draining cancels nothing.
//
// Body: a request is open until its response ended, see [WithCompletion].
//
// Errors: a refusal is an [Error] of kind [ErrClosed].
//
// Cost: one atomic operation in and one out, no allocation.
//
// With a nil d the layer does nothing.
func Drain[Req, Rsp any](d *Drainer, opts ...Option[Rsp]) Layer[Req, Rsp] {
	o := newOptions(opts)
	refused := o.to.LayerRejections.With("layer", "drain")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		if d == nil {
			return next
		}
		s := &drained[Req, Rsp]{
			Service: next,
			options: o,
			by:      d,
			closed:  &Error{Layer: "drain", Target: o.target, Kind: ErrClosed, Reason: "no new requests while it drains"},
		}
		s.refused.to = refused
		return s
	}
}

type drained[Req, Rsp any] struct {
	Service[Req, Rsp]
	options[Rsp]
	by      *Drainer
	refused tally
	closed  *Error // shared by every refusal; never changed
}

func (s *drained[Req, Rsp]) Ready(ctx context.Context) error {
	if s.by.Draining() {
		return s.closed
	}
	err := readyWhile(ctx, s.by.signal(), s.Service)
	if s.by.Draining() {
		return s.closed
	}
	return err
}

func (s *drained[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if gone(ctx) {
		return rsp, refuseDone(ctx, "drain", s.target)
	}
	if !s.by.enter() {
		s.refused.inc()
		return rsp, s.closed
	}
	return callUntil(ctx, s.Service, req, &s.options, s)
}

// Data and End make the layer the Observer of every response, so that none
// has to be made for each.
func (s *drained[Req, Rsp]) Data(int) {}

func (s *drained[Req, Rsp]) End(error) { s.by.leave() }

func (s *drained[Req, Rsp]) Next() Service[Req, Rsp] { return s.Service }

func (s *drained[Req, Rsp]) Describe() Node {
	return Node{Name: "drain", State: State{
		{"in_flight", s.by.InFlight()}, {"draining", s.by.Draining()}, {"refused", s.refused.n.Load()},
	}}
}
