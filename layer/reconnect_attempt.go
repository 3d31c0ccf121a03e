package layer

import (
	"context"
	"errors"
	"time"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/internal/panics"
)

// ensure makes sure that an attempt is under way, unless there is a connection.
// It returns how many attempts are over.
func (r *reconnect[Req, Rsp]) ensure() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.busy && r.link.Load() == nil && r.ctx.Err() == nil {
		r.busy = true
		go r.attempt(time.Until(r.next))
	}
	return r.attempts.Load()
}

var (
	errReconnectNil = errors.New("connect returned no service")
)

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
	case r.ctx.Err() == nil: // what is cut off says nothing
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

// drop gives up a connection that has closed.
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

// refuse is the error while there is no connection. cause is that of the
// context of one who has waited; a Poll's says nothing that Kind does not.
func (r *reconnect[Req, Rsp]) refuse(cause error) error {
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
		// In words alone: that one connection has closed must not read as if
		// this service had.
		e.Reason += ", last error: " + r.cause.Error()
	default:
		e.Err = r.cause
	}
	return e
}

func (r *reconnect[Req, Rsp]) closed() error {
	return &Error{Layer: "reconnect", Target: r.target, Kind: ErrClosed, Err: context.Cause(r.ctx)}
}
