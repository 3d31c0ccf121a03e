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

// Reconnect is a service that is made when it is needed, and made again after
// it has closed: a connection, a stream, a client with a login. connect makes
// it and may wait until ctx ends. The service releases its resources when it
// closes.
//
// Admission: the first Ready or Call connects. There is one attempt at a time.
// After a failed attempt the next one waits for the backoff, and is made only
// if a caller needs it. Without a connection Call rejects at once and starts an
// attempt; Ready waits for the connection, then for inner. A connection that
// returns [ErrClosed] is dropped. It counts as a failed attempt if it answered
// no request and lived for less than b.Max.
//
// Cancellation: a request whose context has ended is rejected. An attempt does
// not end with its callers. After the end of ctx, Ready and Call return
// [ErrClosed].
//
// Body: not touched. Requests in flight on a dropped connection continue.
//
// Errors: a rejection is an [Error] of kind [ErrNotReady] with the last failure
// and, as RetryAfter, the time to the next attempt. A connect that panics has
// failed.
//
// Cost: two atomic loads for a request, no allocation. A goroutine runs during
// an attempt and the wait before it.
//
// The zero Backoff is [DefaultBackoff]. An invalid Backoff panics.
func Reconnect[Req, Rsp any](
	ctx context.Context, connect func(ctx context.Context) (Service[Req, Rsp], error), b Backoff, opts ...Option[Rsp],
) Service[Req, Rsp] {
	check(connect != nil, "Reconnect: nil function")
	if err := backoff.Check(b); err != nil {
		panic("layer: Reconnect: " + err.Error())
	}
	o := newOptions(opts)
	return &reconnect[Req, Rsp]{
		ctx:      ctx,
		connect:  connect,
		backoff:  b.OrDefault(),
		target:   o.target,
		made:     tally{to: o.to.ConnectAttempts.With("outcome", "success")},
		failed:   tally{to: o.to.ConnectAttempts.With("outcome", "failure")},
		rejected: tally{to: o.to.LayerRejections.With("layer", "reconnect")},
	}
}

type reconnect[Req, Rsp any] struct {
	ctx     context.Context //nolint:containedctx // the constructor's: the life of this service
	connect func(context.Context) (Service[Req, Rsp], error)
	backoff Backoff
	target  string

	link     atomic.Pointer[reconnectLink[Req, Rsp]] // nil without a connection; written with mu
	attempts atomic.Int64                            // completed; written with mu
	changed  notify.Broadcast                        // of link, attempts and ctx

	mu    sync.Mutex
	busy  bool      // an attempt, or the wait before it, is running
	row   int       // consecutive failures
	next  time.Time // no attempt before this
	cause error     // the last failure

	made, failed, rejected tally
}

// reconnectLink is one connection.
type reconnectLink[Req, Rsp any] struct {
	Service[Req, Rsp]
	since  time.Time
	proved atomic.Bool // has served a request
}

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
		case r.ctx.Err() != nil: // before the state of the connection
			return r.closed()
		case err == nil || !errors.Is(err, ErrClosed):
			return err
		}
		r.drop(link, err)
	}
}

// wait returns nil when a connection exists, an attempt has ended, or r.ctx has
// ended.
func (r *reconnect[Req, Rsp]) wait(ctx context.Context) error {
	before := r.ensure()
	// The attempt may not observe r.ctx.
	stop := context.AfterFunc(r.ctx, r.changed.Wake)
	defer stop()
	err := r.changed.Wait(ctx, func() bool {
		return r.link.Load() != nil || r.attempts.Load() != before || r.ctx.Err() != nil
	})
	if err != nil {
		return r.reject(err)
	}
	return nil
}

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
			return rsp, err
		}
		// A rejection. Another connection may exist now.
		r.drop(link, err)
	}
}

func (r *reconnect[Req, Rsp]) Describe() Node {
	link := r.link.Load()
	r.mu.Lock()
	state := State{{"state", r.state(link != nil)}}
	if link == nil && r.cause != nil {
		state = append(state, Attr{"failures", r.row}, Attr{"last_error", r.cause.Error()})
		if wait := time.Until(r.next); wait > 0 {
			state = append(state, Attr{"next_attempt", wait.Round(time.Millisecond)})
		}
	}
	r.mu.Unlock()
	n := Node{Name: "reconnect", State: append(state,
		Attr{"connects", r.made.n.Load()}, Attr{"failed", r.failed.n.Load()}, Attr{"rejected", r.rejected.n.Load()})}
	if link != nil {
		n.Children = []Node{Describe(link.Service)}
	}
	return n
}

// state is called with mu.
func (r *reconnect[Req, Rsp]) state(connected bool) string {
	switch {
	case r.ctx.Err() != nil:
		return "closed"
	case connected:
		return "connected"
	case r.busy && time.Until(r.next) > 0:
		return "waiting"
	case r.busy:
		return "connecting"
	}
	return "idle"
}

// ensure starts an attempt unless one is running or a connection exists. It
// returns the number of completed attempts.
func (r *reconnect[Req, Rsp]) ensure() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.busy && r.link.Load() == nil && r.ctx.Err() == nil {
		r.busy = true
		go r.attempt(time.Until(r.next))
	}
	return r.attempts.Load()
}

var errReconnectNil = errors.New("connect returned no service")

// attempt connects once, after a wait.
func (r *reconnect[Req, Rsp]) attempt(wait time.Duration) {
	var svc Service[Req, Rsp]
	err := panics.ErrExited
	defer func() { r.finish(svc, err) }()
	defer panics.Recover(&err)
	if wait > 0 && backoff.Sleep(r.ctx, wait) != nil {
		err = context.Cause(r.ctx)
		return
	}
	svc, err = r.connect(r.ctx)
	if svc == nil && err == nil {
		err = errReconnectNil
	}
}

func (r *reconnect[Req, Rsp]) finish(svc Service[Req, Rsp], err error) {
	defer r.changed.Wake()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = false
	switch {
	case err == nil:
		_ = panics.Contain(r.made.inc)
		r.link.Store(&reconnectLink[Req, Rsp]{Service: svc, since: time.Now()})
	case r.ctx.Err() == nil: // a canceled attempt does not count
		_ = panics.Contain(r.failed.inc)
		r.failure(time.Now(), err)
	}
	r.attempts.Add(1)
}

// failure begins the wait after an attempt that failed at since. It is called
// with mu.
func (r *reconnect[Req, Rsp]) failure(since time.Time, cause error) {
	r.next = since.Add(r.backoff.Delay(r.row))
	r.row++
	r.cause = cause
}

// drop removes a closed connection.
func (r *reconnect[Req, Rsp]) drop(link *reconnectLink[Req, Rsp], cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.link.CompareAndSwap(link, nil) {
		return
	}
	if link.proved.Load() || time.Since(link.since) >= r.backoff.Max {
		r.row, r.next, r.cause = 0, time.Time{}, cause
		return
	}
	r.failure(link.since, cause)
}

// reject returns the rejection without a connection. cause is that of the
// context of a waiting caller.
func (r *reconnect[Req, Rsp]) reject(cause error) error {
	if isBare(cause) && errors.Is(cause, ErrNotReady) {
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
		// Only the text, because a closed connection does not close this service.
		e.Reason += ", last error: " + r.cause.Error()
	default:
		e.Err = r.cause
	}
	return e
}

func (r *reconnect[Req, Rsp]) closed() error {
	return &Error{Layer: "reconnect", Target: r.target, Kind: ErrClosed, Err: context.Cause(r.ctx)}
}

// Backoff is jittered exponential backoff: the wait after failure n, from 0, is
// min(Min·2ⁿ, Max) plus a random share of up to Jitter, at most Max.
type Backoff = backoff.Backoff

// DefaultBackoff returns that of linkerd's outbound proxy: 100 ms to 60 s with a
// jitter of 0.1.
func DefaultBackoff() Backoff { return backoff.Default() }
