package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// expiry is a context with a time limit. It is one allocation until somebody
// asks to be woken at its end (Done, or a child context); only then is it given
// a context of package context, with a timer, to stand for it. Most leaves that
// look at the clock themselves, and refusals, never ask.
//
// Until then the end is found by whoever asks for Err. If by that time both
// the limit has run out and the parent was cancelled, which came first cannot
// be known, and the parent's end is told.
//
// It is the Observer of the response that it is for: End lets it go.
type expiry struct {
	context.Context //nolint:containedctx // the parent: this is a context

	cause  error     // what context.Cause returns once the limit has run out
	at     time.Time // when it runs out; zero: there is no limit of our own
	kind   expiryKind
	state  atomic.Uint32 // one of the states below
	lifted atomic.Bool   // soft: the limit no longer holds

	// Written with mu, before the state that they belong to.
	mu    sync.Mutex
	real  context.Context //nolint:containedctx // live: stands for this context
	end   any             // live: the function that ends real; gone: the cause, if one was given
	timer *time.Timer     // live and soft: ends real at the limit
}

type expiryKind uint8

const (
	// hard: a deadline that everybody below is told of. Ended by hand it gives
	// context.Canceled as its cause, whatever cancel is told.
	hard expiryKind = iota

	// byHand: a deadline, and cancel gives the cause to every child. It costs
	// one more context than hard, once somebody asks for Done.
	byHand

	// soft: a limit that may be lifted, and so is not told as a deadline. When
	// it runs out the context is cancelled: Err is context.Canceled.
	soft
)

// The states of an expiry.
const (
	expiryIdle uint32 = iota // nobody asked for Done
	expiryGone               // let go before anybody did
	expiryLive               // real stands for it
)

// newExpiry returns a context that ends after a time, as that of
// context.WithTimeoutCause does; never later than its parent. An after of 0 or
// less is no limit. Whoever made it calls End, or cancel.
func newExpiry(parent context.Context, after time.Duration, cause error) *expiry {
	e := new(expiry)
	e.init(parent, after, cause, hard)
	return e
}

// newTryExpiry is newExpiry for one who will cancel with a cause: a try that
// lost to a hedge.
func newTryExpiry(parent context.Context, after time.Duration, cause error) *expiry {
	e := new(expiry)
	e.init(parent, after, cause, byHand)
	return e
}

// init sets up an expiry that is part of a larger struct.
func (e *expiry) init(parent context.Context, after time.Duration, cause error, k expiryKind) {
	e.Context, e.cause, e.kind = parent, cause, k
	if after <= 0 {
		return
	}
	at := time.Now().Add(after)
	if theirs, ok := parent.Deadline(); ok && theirs.Before(at) {
		return
	}
	e.at = at
}

// Deadline returns the limit, or that of the parent if it is sooner.
func (e *expiry) Deadline() (time.Time, bool) {
	if e.at.IsZero() || e.kind == soft {
		return e.Context.Deadline()
	}
	return e.at, true
}

// Done returns the channel of the context that stands for this one. Children
// find that context by Value and live directly below it, so that they cost no
// goroutine, end with it and share its cause.
func (e *expiry) Done() <-chan struct{} { return e.arm().Done() }

func (e *expiry) Err() error {
	switch e.state.Load() {
	case expiryLive:
		return e.real.Err()
	case expiryIdle:
		if !e.over() && e.Context.Err() == nil {
			return nil
		}
	}
	return e.arm().Err()
}

func (e *expiry) Value(key any) any {
	if e.state.Load() == expiryLive {
		return e.real.Value(key)
	}
	return e.Context.Value(key)
}

// over reports whether the limit has run out, by the clock.
func (e *expiry) over() bool {
	return !e.at.IsZero() && !e.lifted.Load() && time.Until(e.at) <= 0
}

// arm returns the context that stands for e, and makes it if there is none.
func (e *expiry) arm() context.Context {
	if e.state.Load() == expiryLive {
		return e.real
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.armLocked()
}

func (e *expiry) armLocked() context.Context {
	state := e.state.Load()
	if state == expiryLive {
		return e.real
	}
	why, _ := e.end.(error)
	if state == expiryGone || e.outlived() {
		e.makeReal(context.WithoutCancel(e.Context))
	} else {
		e.makeReal(e.Context)
	}
	if e.state.Swap(expiryLive) == expiryGone {
		e.endReal(why)
	}
	return e.real
}

func (e *expiry) makeReal(parent context.Context) {
	gone := e.state.Load() == expiryGone
	if e.at.IsZero() || e.kind == soft || gone {
		var end context.CancelCauseFunc
		e.real, end = context.WithCancelCause(parent)
		e.end = end
		if e.kind == soft && !gone {
			e.limitReal()
		}
		return
	}
	var end context.CancelFunc
	if e.kind == hard {
		e.real, end = context.WithDeadlineCause(parent, e.at, e.cause)
		e.end = end
		return
	}
	above, endAbove := context.WithCancelCause(parent)
	e.real, end = context.WithDeadlineCause(above, e.at, e.cause)
	_ = end // what ends the one above ends this one and its timer
	e.end = endAbove
}

// limitReal puts the limit of a soft expiry on the context that stands for it.
func (e *expiry) limitReal() {
	switch {
	case e.at.IsZero() || e.lifted.Load():
	case e.over():
		e.endReal(e.cause)
	default:
		e.timer = time.AfterFunc(time.Until(e.at), e.overdue)
	}
}

// outlived reports whether e ended before its parent, although that has ended
// too by now: by a limit that was sooner than the parent's deadline.
func (e *expiry) outlived() bool {
	if !errors.Is(e.Context.Err(), context.DeadlineExceeded) || !e.over() {
		return false
	}
	theirs, ok := e.Context.Deadline()
	return ok && e.at.Before(theirs)
}

// endReal ends the context that stands for e. A hard one takes no cause.
func (e *expiry) endReal(cause error) {
	if e.timer != nil {
		e.timer.Stop()
	}
	switch end := e.end.(type) {
	case context.CancelCauseFunc:
		end(cause)
	case context.CancelFunc:
		end()
	}
}

// overdue is the timer of a soft expiry.
func (e *expiry) overdue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.lifted.Load() {
		e.endReal(e.cause)
	}
}

// lift takes the limit of a soft expiry away. It returns false if it is too
// late: the context has been ended by it.
func (e *expiry) lift() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lifted.Swap(true) || e.state.Load() != expiryLive {
		return true
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	live := e.real
	return context.Cause(live) != e.cause
}

// expired reports whether the context has ended by its limit.
func (e *expiry) expired() bool {
	return e.Err() != nil && context.Cause(e) == e.cause
}

// cancel ends the context, and says why. It does nothing to one that ended.
func (e *expiry) cancel(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Load() == expiryIdle && !e.over() && e.Context.Err() == nil {
		if cause != nil {
			e.end = cause
		}
		if e.state.CompareAndSwap(expiryIdle, expiryGone) {
			return
		}
	}
	if e.state.Load() != expiryGone {
		e.armLocked()
		e.endReal(cause)
	}
}

// Data is part of [Observer].
func (e *expiry) Data(int) {}

// End lets the context go: it is cancelled, and no timer is left. It may be
// called more than once.
func (e *expiry) End(error) {
	if e.state.CompareAndSwap(expiryIdle, expiryGone) || e.state.Load() == expiryGone {
		return
	}
	e.endReal(nil)
}

// gone is ctx.Err() != nil as an admission point asks it: has the caller left?
// Of an expiry that nobody has armed it does not read the clock for that: every
// layer on the way would, for a limit that has hardly begun. Whoever waits or
// works for longer asks the context itself, and is told.
func gone(ctx context.Context) bool {
	for {
		switch c := ctx.(type) {
		case *attempt:
			ctx = c.Context
		case *expiry:
			if c.state.Load() != expiryIdle {
				return c.Err() != nil
			}
			ctx = c.Context
		default:
			return ctx.Err() != nil
		}
	}
}
