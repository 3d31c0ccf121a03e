package layer

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/reqctx"
)

// Drain returns a layer that counts a stack's open requests in the [Drainer] d, and rejects new
// ones while d drains. It should be the outermost layer of the stack. One Drainer may serve
// several stacks.
//
// Admission: every request is admitted until [Drainer.Drain] is called. After that, every request
// is rejected. Ready waits for inner, and returns [ErrClosed] when draining starts.
//
// Cancellation: a request is rejected if its context has ended. Draining cancels no request.
//
// Body: a request is open until its response ends, see [WithCompletion].
//
// Errors: a rejection is an [Error] of kind [ErrClosed].
//
// Cost: two atomic operations and no allocation.
//
// It panics if d is nil.
func Drain[Req, Rsp any](d *Drainer, opts ...Option[Rsp]) Layer[Req, Rsp] {
	check(d != nil, "Drain: nil Drainer")
	o := newOptions(opts)
	rejected := o.instruments.LayerRejections.With("layer", "drain")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		s := &drained[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next},
			options: o,
			drainer: d,
			closed:  &Error{Layer: "drain", Target: o.target, Kind: ErrClosed, Reason: "no new requests while it drains"},
		}
		s.rejected.counter = rejected
		return s
	}
}

// Drain adds a [Drain] layer, which counts the open requests in d and rejects new requests while d
// drains.
func (s Stack[Req, Rsp]) Drain(d *Drainer) Stack[Req, Rsp] {
	return s.With("drain", Drain[Req](d, s.opts...))
}

// drained is the service of the layer [Drain].
type drained[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	drainer  *Drainer
	rejected tally
	closed   *Error // shared by all rejections; never modified
}

// Ready waits until the service below is ready, or draining has begun. Once draining has begun, it
// returns an error that matches ErrClosed, whether the service below is ready or not.
func (s *drained[Req, Rsp]) Ready(ctx context.Context) error {
	if s.drainer.Draining() {
		// ReadyWhile ends its wait when draining begins.
		return s.closed
	}
	err := ReadyWhile(ctx, s.drainer.signal(), s.Service)
	if s.drainer.Draining() {
		return s.closed
	}
	return err
}

// Call sends req and counts it until it has ended. Once draining has begun, it rejects all requests.
func (s *drained[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "drain", s.target)
	}
	if !s.drainer.enter() {
		s.rejected.inc()
		return rsp, s.closed
	}
	return callUntil(ctx, s.Service, req, &s.options, s)
}

// Data implements [Observer] and does nothing. The service itself is the Observer of every response,
// because a separate one would be an allocation.
func (s *drained[Req, Rsp]) Data(int) {}

// End implements [Observer]: the response has ended, so the request is no longer open.
func (s *drained[Req, Rsp]) End(error) { s.drainer.leave() }

// Describe returns the state of the Drainer, which several stacks may share.
func (s *drained[Req, Rsp]) Describe() Node {
	return Node{Name: "drain", State: State{
		{"in_flight", s.drainer.InFlight()}, {"draining", s.drainer.Draining()}, {"rejected", s.rejected.n.Load()},
	}}
}

// Drainer drains a server's stacks: it rejects new requests and waits for the open ones. Create
// it with [NewDrainer] and pass it to a [Drain] layer in each stack. You should call Drain only
// after clients have been directed elsewhere.
//
// With net/http, first let the readiness probe fail and wait until clients have noticed it. Then
// call Server.Shutdown, which waits for responses and closes idle connections. Drain should come
// last. It also waits for hijacked connections, which Shutdown does not.
//
// It is safe for concurrent use and must not be copied. It needs no Close.
type Drainer struct {
	// state is the number of open requests. Its sign bit is set while draining. Both are in
	// one word, so that Drain waits for every request that was admitted before Drain set
	// the bit.
	state atomic.Int64
	empty notify.Broadcast

	once    sync.Once
	started context.Context //nolint:containedctx // ends when draining begins; nil before the first call of signal
	begin   context.CancelFunc
}

// drainBegun is the sign bit of a [Drainer]'s state. It is set while draining.
const drainBegun = math.MinInt64

// NewDrainer returns a Drainer that admits all requests until Drain is called.
func NewDrainer() *Drainer { return new(Drainer) }

// Drain rejects new requests and waits until the open ones have ended, responses included. If ctx
// ends first, it returns an [Error] that matches ctx's cause and tells how many requests are
// still open. They continue. Drain may be called again and concurrently.
func (d *Drainer) Drain(ctx context.Context) error {
	start := time.Now()
	// From here on, enter rejects requests.
	d.state.Or(drainBegun)
	// signal makes the context, if no Ready has made it, so that begin is set.
	d.signal()
	d.begin()
	err := d.empty.Wait(ctx, d.drained)
	// The last request may have ended together with ctx.
	if err == nil || d.drained() {
		return nil
	}
	return &Error{
		Layer: "drain", Reason: fmt.Sprintf("%d requests are still open", d.InFlight()), Waited: time.Since(start), Err: err,
	}
}

// Draining reports whether Drain was called. A readiness probe should fail well before that call,
// because Drain rejects requests from clients that have not yet noticed the probe.
func (d *Drainer) Draining() bool { return d.state.Load() < 0 }

// InFlight returns the number of open requests.
func (d *Drainer) InFlight() int64 { return d.state.Load() &^ drainBegun }

// drained reports whether the Drainer drains and no request is open.
func (d *Drainer) drained() bool { return d.state.Load() == drainBegun }

// enter counts a request as open and returns true. If d drains, it returns false.
func (d *Drainer) enter() bool {
	// Rejected requests must not count, because they would delay Drain.
	if d.Draining() {
		return false
	}
	// Drain may have begun since the check. Then this request does not count.
	if d.state.Add(1) < 0 {
		d.leave()
		return false
	}
	return true
}

// leave ends an open request, and tells Drain if it was the last one.
func (d *Drainer) leave() {
	if d.state.Add(-1) == drainBegun {
		d.empty.Wake()
	}
}

// signal returns a context that ends when draining begins. It is made when it is first needed.
func (d *Drainer) signal() context.Context {
	d.once.Do(func() { d.started, d.begin = context.WithCancel(context.Background()) })
	return d.started
}
