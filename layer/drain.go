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

// Drain returns a layer that counts the open requests of a stack in the [Drainer] d. The
// layer rejects new requests while d drains. Place it outermost in a stack. One Drainer may
// serve several stacks.
//
// Admission: every request is admitted until [Drainer.Drain] is called. After that, every
// request is rejected. Ready waits for inner, and returns [ErrClosed] when draining starts.
//
// Cancellation: a request is rejected if its context has ended. Draining cancels no
// request.
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
	rejected := o.to.LayerRejections.With("layer", "drain")
	return func(next Service[Req, Rsp]) Service[Req, Rsp] {
		s := &drained[Req, Rsp]{
			wrapper: wrapper[Req, Rsp]{next},
			options: o,
			by:      d,
			closed:  &Error{Layer: "drain", Target: o.target, Kind: ErrClosed, Reason: "no new requests while it drains"},
		}
		s.rejected.to = rejected
		return s
	}
}

type drained[Req, Rsp any] struct {
	wrapper[Req, Rsp]
	options[Rsp]
	by       *Drainer
	rejected tally
	closed   *Error // shared by all rejections; never modified
}

func (s *drained[Req, Rsp]) Ready(ctx context.Context) error {
	if s.by.Draining() {
		return s.closed
	}
	err := ReadyWhile(ctx, s.by.signal(), s.Service)
	if s.by.Draining() {
		return s.closed
	}
	return err
}

func (s *drained[Req, Rsp]) Call(ctx context.Context, req Req) (rsp Rsp, err error) {
	if reqctx.Ended(ctx) {
		return rsp, rejectDone(ctx, "drain", s.target)
	}
	if !s.by.enter() {
		s.rejected.inc()
		return rsp, s.closed
	}
	return callUntil(ctx, s.Service, req, &s.options, s)
}

// Data does nothing, because the layer needs only the end of a response. Data is part of
// [Observer], which the service itself implements to save an allocation.
func (s *drained[Req, Rsp]) Data(int) {}

func (s *drained[Req, Rsp]) End(error) { s.by.leave() }

func (s *drained[Req, Rsp]) Describe() Node {
	return Node{Name: "drain", State: State{
		{"in_flight", s.by.InFlight()}, {"draining", s.by.Draining()}, {"rejected", s.rejected.n.Load()},
	}}
}

// Drainer drains the stacks of a server: it rejects new requests and waits for the open
// ones. Create it with [NewDrainer] and pass it to a [Drain] layer in each stack. Call its
// method Drain after clients have been directed elsewhere.
//
// With net/http, first let the readiness probe fail and wait until clients have noticed it.
// Then call Server.Shutdown, which waits for responses and closes idle connections. Call
// Drain last. It also waits for hijacked connections, for which Shutdown does not wait.
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

// drainBegun is the sign bit of the field state of a [Drainer]. It is set while draining.
const drainBegun = math.MinInt64

// NewDrainer returns a Drainer that admits all requests until Drain is called.
func NewDrainer() *Drainer { return new(Drainer) }

// Drain rejects new requests and waits until the open ones have ended, responses included.
// If ctx ends first, it returns an [Error] with the number of open requests, which
// continue. The error matches the cause of ctx. Drain may be called again and concurrently.
func (d *Drainer) Drain(ctx context.Context) error {
	start := time.Now()
	d.state.Or(drainBegun)
	d.signal()
	d.begin()
	err := d.empty.Wait(ctx, d.drained)
	if err == nil || d.drained() {
		return nil
	}
	return &Error{
		Layer: "drain", Reason: fmt.Sprintf("%d requests are still open", d.InFlight()), Waited: time.Since(start), Err: err,
	}
}

// Draining reports whether Drain was called. A readiness probe must fail before that call, because
// Drain rejects the requests of clients that have not yet noticed the probe.
func (d *Drainer) Draining() bool { return d.state.Load() < 0 }

// InFlight returns the number of open requests.
func (d *Drainer) InFlight() int64 { return d.state.Load() &^ drainBegun }

func (d *Drainer) drained() bool { return d.state.Load() == drainBegun }

// enter counts a request as open and returns true. If d drains, it returns false.
func (d *Drainer) enter() bool {
	// Rejected requests must not count, because they would delay Drain.
	if d.Draining() {
		return false
	}
	if d.state.Add(1) < 0 {
		d.leave()
		return false
	}
	return true
}

func (d *Drainer) leave() {
	if d.state.Add(-1) == drainBegun {
		d.empty.Wake()
	}
}

func (d *Drainer) signal() context.Context {
	d.once.Do(func() { d.started, d.begin = context.WithCancel(context.Background()) })
	return d.started
}
