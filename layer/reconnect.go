package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/notify"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/internal/reqctx"
)

// Reconnect returns a service that sends requests to one connection at a time. A connection is a
// service that connect returned. Once it returns [ErrClosed], Reconnect calls connect again. A
// connection must release its resources when it closes.
//
// Admission: the first Ready or Call starts a call of connect. Only one such call runs at a time.
// After a failure, connect is called again once the backoff b has passed and a caller needs a
// connection. Without a connection, Call starts connect and rejects the request at once. Ready
// waits for the connection, then for its Ready. A connection that returns [ErrClosed] is dropped.
// It counts as a failed connect if it served no request and lasted less than b.Max.
//
// Cancellation: a request is rejected if its context has ended. Canceled callers do not cancel
// connect. Once ctx has ended, Ready and Call return [ErrClosed].
//
// Body: not touched. Requests in flight on a dropped connection continue.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady] with the last failure. Its RetryAfter is
// the time to the next connect.
//
// Cost: two atomic loads per request. A goroutine runs during connect and the wait before it. A
// zero b means [DefaultBackoff].
func Reconnect[Req, Rsp any](
	ctx context.Context, connect func(ctx context.Context) (Service[Req, Rsp], error), b Backoff, opts ...Option[Rsp],
) Service[Req, Rsp] {
	check(connect != nil, "Reconnect: nil function")
	if err := backoff.Check(b); err != nil {
		panic("layer: Reconnect: " + err.Error())
	}
	o := newOptions(opts)
	return &reconnect[Req, Rsp]{
		ctx:         ctx,
		connect:     connect,
		backoff:     b.OrDefault(),
		target:      o.target,
		established: tally{counter: o.instruments.ConnectAttempts.With("outcome", "success")},
		failed:      tally{counter: o.instruments.ConnectAttempts.With("outcome", "failure")},
		rejected:    tally{counter: o.instruments.LayerRejections.With("layer", "reconnect")},
	}
}

// reconnect is the service that [Reconnect] returns. At most one goroutine, that of attempt, connects.
type reconnect[Req, Rsp any] struct {
	ctx     context.Context //nolint:containedctx // the constructor's; the service ends with it
	connect func(context.Context) (Service[Req, Rsp], error)
	backoff Backoff
	target  string

	link     atomic.Pointer[reconnectLink[Req, Rsp]] // nil without a connection; written with mu held
	attempts atomic.Int64                            // number of completed connects; written with mu held
	changed  notify.Broadcast                        // wakes waiters when link, attempts or the state of ctx changes

	mu    sync.Mutex
	busy  bool      // a goroutine runs connect or waits before it
	row   int       // number of consecutive failures
	next  time.Time // the earliest time of the next connect
	cause error     // the last failure

	established, failed, rejected tally
}

// reconnectLink is one connection, that is, one service that connect returned.
type reconnectLink[Req, Rsp any] struct {
	Service[Req, Rsp]
	start  time.Time
	proved atomic.Bool // whether it has served a request
}

// Ready waits until there is a connection that is ready. It starts to connect if there is none.
func (r *reconnect[Req, Rsp]) Ready(ctx context.Context) error {
	for {
		if r.ctx.Err() != nil {
			return r.closed()
		}
		link := r.link.Load()
		if link == nil {
			if err := r.wait(ctx); err != nil {
				return err
			}
			continue
		}
		err := ReadyWhile(ctx, r.ctx, link.Service)
		switch {
		case r.ctx.Err() != nil: // precedes the state of the connection
			return r.closed()
		case err == nil || !errors.Is(err, ErrClosed):
			return err
		}
		r.drop(link, err)
	}
}

// wait waits until there is something new: a connection, the end of a call of connect, or the end of
// r.ctx. It starts connect if necessary. It returns nil, and the caller looks again, or a rejection if
// ctx ends first.
func (r *reconnect[Req, Rsp]) wait(ctx context.Context) error {
	// Read the generation before waiting, so that a connect that ends in between is not missed.
	generation := r.ensure()
	// connect may not observe r.ctx.
	stop := context.AfterFunc(r.ctx, r.changed.Wake)
	defer stop()
	err := r.changed.Wait(ctx, func() bool {
		return r.link.Load() != nil || r.attempts.Load() != generation || r.ctx.Err() != nil
	})
	if err != nil {
		return r.reject(err)
	}
	return nil
}

// Call sends req on the current connection. Without one it rejects the request, and starts to connect.
func (r *reconnect[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	var zero Rsp
	if reqctx.Ended(ctx) {
		return zero, rejectDone(ctx, "reconnect", r.target)
	}
	for {
		link := r.link.Load()
		switch {
		case r.ctx.Err() != nil:
			return zero, r.closed()
		case link == nil:
			r.ensure()
			r.rejected.inc()
			return zero, r.reject(nil)
		}
		rsp, err := link.Call(ctx, req)
		switch {
		case err == nil:
			if !link.proved.Load() {
				link.proved.Store(true)
			}
			return rsp, nil
		case !errors.Is(err, ErrClosed):
			// Any other error belongs to the request, and the connection stays.
			return rsp, err
		}
		// It was rejected. Another connection may exist by now.
		r.drop(link, err)
	}
}

// Describe returns whether there is a connection and, if not, why.
func (r *reconnect[Req, Rsp]) Describe() Node {
	link := r.link.Load()
	r.mu.Lock()
	state := State{{"state", r.state(link != nil)}}
	// Only while disconnected: then the last failure matters.
	if link == nil && r.cause != nil {
		state = append(state, Attr{"failures", r.row}, Attr{"last_error", r.cause.Error()})
		if wait := time.Until(r.next); wait > 0 {
			state = append(state, Attr{"next_attempt", wait.Round(time.Millisecond)})
		}
	}
	r.mu.Unlock()
	n := Node{Name: "reconnect", State: append(state,
		Attr{"connects", r.established.n.Load()}, Attr{"failed", r.failed.n.Load()}, Attr{"rejected", r.rejected.n.Load()})}
	if link != nil {
		n.Children = []Node{Describe(link.Service)}
	}
	return n
}

// state returns the service's state as text, for Describe. connected reports whether a connection
// exists. The caller must hold mu.
func (r *reconnect[Req, Rsp]) state(connected bool) string {
	switch {
	case r.ctx.Err() != nil:
		return "closed"
	case connected:
		return "connected"
	// While busy, the layer either waits for the next attempt or makes it.
	case r.busy && time.Until(r.next) > 0:
		return "waiting"
	case r.busy:
		return "connecting"
	}
	return "idle"
}

// ensure makes sure that connect is called soon, on its own goroutine, unless there is a connection or
// r.ctx has ended. It returns the number of completed calls of connect, by which wait notices the next
// one.
func (r *reconnect[Req, Rsp]) ensure() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.busy && r.link.Load() == nil && r.ctx.Err() == nil {
		r.busy = true
		go r.attempt(time.Until(r.next))
	}
	return r.attempts.Load()
}

// errReconnectNil is the error of an attempt in which connect returned neither a service nor an error.
var errReconnectNil = errors.New("connect returned no service")

// attempt calls connect once, after the time wait. It is the function of a goroutine.
func (r *reconnect[Req, Rsp]) attempt(wait time.Duration) {
	var svc Service[Req, Rsp]
	err := panics.ErrExited // stays so if connect ends the goroutine
	defer func() { r.finish(svc, err) }()
	defer panics.Recover(&err)
	if wait > 0 && backoff.Sleep(r.ctx, wait) != nil {
		// The service has ended during the backoff.
		err = context.Cause(r.ctx)
		return
	}
	svc, err = r.connect(r.ctx)
	// A nil service without an error would look like a missing connection.
	if svc == nil && err == nil {
		err = errReconnectNil
	}
}

// finish records the result of a call of connect.
func (r *reconnect[Req, Rsp]) finish(svc Service[Req, Rsp], err error) {
	defer r.changed.Wake()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	switch {
	case err == nil:
		_ = panics.Contain(r.established.inc)
		r.link.Store(&reconnectLink[Req, Rsp]{Service: svc, start: time.Now()})
	case r.ctx.Err() == nil: // a canceled connect does not count
		_ = panics.Contain(r.failed.inc)
		r.failure(time.Now(), err)
	}
	// Waiters see the end of this call, whatever its result.
	r.attempts.Add(1)
}

// failure records a failed connect, and begins a backoff at start. A connection that returned
// [ErrClosed] too early also counts. The caller must hold mu.
func (r *reconnect[Req, Rsp]) failure(start time.Time, cause error) {
	r.next = start.Add(r.backoff.Delay(r.row))
	r.row++
	r.cause = cause
}

// drop removes the connection link, which has returned cause, an [ErrClosed]. The next caller connects
// again. If link has served no request and did not last as long as the longest backoff, this counts as
// a failed connect, so that a server which accepts and closes connections is not overrun.
func (r *reconnect[Req, Rsp]) drop(link *reconnectLink[Req, Rsp], cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Another caller has dropped it already.
	if !r.link.CompareAndSwap(link, nil) {
		return
	}
	// The connection has worked, so the next one is made without a backoff.
	if link.proved.Load() || time.Since(link.start) >= r.backoff.Max {
		r.row, r.next, r.cause = 0, time.Time{}, cause
		return
	}
	r.failure(link.start, cause)
}

// reject returns the error of Call or Ready while there is no connection. cause is why Ready's context
// has ended, or nil for Call.
func (r *reconnect[Req, Rsp]) reject(cause error) error {
	if errors.Is(cause, ErrNotReady) { // by Poll; the reason below says more
		cause = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &Error{Layer: "reconnect", Target: r.target, Kind: ErrNotReady, Reason: "connecting", Err: cause}
	if wait := time.Until(r.next); wait > 0 {
		e.RetryAfter = wait
		e.Reason = "next attempt in " + wait.Round(time.Millisecond).String()
	}
	switch {
	case r.cause == nil:
	case cause != nil || errors.Is(r.cause, ErrNotReady):
		// Only the text is added, because the service is not closed although the connection is.
		e.Reason += ", last error: " + r.cause.Error()
	default:
		e.Err = r.cause
	}
	return e
}

// closed returns the error after r.ctx has ended.
func (r *reconnect[Req, Rsp]) closed() error {
	return &Error{Layer: "reconnect", Target: r.target, Kind: ErrClosed, Err: context.Cause(r.ctx)}
}

// Backoff is exponential backoff with jitter. The wait after failure n, counted from 0, is
// w = min(Min·2ⁿ, Max). A random part of up to Jitter·w is added, but the total is at most
// Max.
type Backoff = backoff.Backoff

// DefaultBackoff returns the backoff that linkerd's outbound proxy uses: 100 ms to 60 s with a
// jitter of 0.1.
func DefaultBackoff() Backoff { return backoff.Default() }
