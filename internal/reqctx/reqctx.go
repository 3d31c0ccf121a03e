// Package reqctx has a context for requests that is cheap as long as no component waits for
// the end of the context.
//
// A [Context] costs one allocation, or none if it is part of a larger struct. It registers
// with its parent and starts a timer for its deadline only when a component asks to be
// notified of its end. Contexts of package context that are derived from it need no
// goroutine.
package reqctx

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Context is a cancelable context with an optional time limit. Init initializes it.
// After that it is safe for concurrent use.
type Context struct {
	parent   context.Context //nolint:containedctx // it is a context
	deadline time.Time       // zero without a deadline, or if the parent's is earlier
	cause    error           // the cause of the time limit; after the end, the result of Cause

	hidden  bool          // the method Deadline does not return the deadline
	lifted  bool          // the deadline no longer applies; guarded by mu
	expired bool          // the context ended at its own deadline; guarded by mu
	state   atomic.Uint32 // one of the states below; changed with mu, except by Release

	mu    sync.Mutex
	timer *time.Timer
	stop  func() bool // ends the registration with a parent of another package
	below watchers    // the watchers of this context, and the channel of Done
}

var _ context.Context = (*Context)(nil)

// The states of a Context.
const (
	idle     uint32 = iota // no component asked to be notified of the end
	active                 // registered with the parent, and the timer runs
	released               // ended by Release while it was idle; Err and Cause return context.Canceled
	canceled               // ended; Err returns context.Canceled
	exceeded               // ended; Err returns context.DeadlineExceeded
)

// New returns a new context, initialized by Init with the same arguments.
func New(parent context.Context, d time.Duration, cause error) *Context {
	c := new(Context)
	c.Init(parent, d, cause)
	return c
}

// Init initializes c. The context ends when the context parent ends or Cancel is called. If d > 0,
// it also ends after d. The cause of this end is the argument cause.
func (c *Context) Init(parent context.Context, d time.Duration, cause error) {
	c.parent, c.cause = parent, cause
	if d <= 0 {
		return
	}
	at := time.Now().Add(d)
	if above, ok := parent.Deadline(); !ok || at.Before(above) {
		c.deadline = at
	}
}

// InitHidden is like Init, but Lift can remove the time limit. The method Deadline ignores this
// limit, because a caller must not rely on a deadline that Lift may remove. After the limit has
// passed, Err returns [context.Canceled].
func (c *Context) InitHidden(parent context.Context, d time.Duration, cause error) {
	c.parent, c.cause, c.hidden = parent, cause, true
	if d > 0 {
		c.deadline = time.Now().Add(d)
	}
}

// Deadline returns the earliest deadline of c and its parents. It ignores hidden limits:
// see InitHidden.
func (c *Context) Deadline() (time.Time, bool) {
	if c.deadline.IsZero() || c.hidden {
		return c.parent.Deadline()
	}
	return c.deadline, true
}

// Done returns a channel that is closed when the context ends.
func (c *Context) Done() <-chan struct{} {
	c.activate()
	c.mu.Lock()
	defer c.mu.Unlock()
	done, ok := c.below.done()
	if !ok && c.ended() {
		close(done)
	}
	return done
}

// Err returns nil, [context.Canceled] or [context.DeadlineExceeded].
func (c *Context) Err() error {
	c.poll()
	switch c.state.Load() {
	case released, canceled:
		return context.Canceled
	case exceeded:
		return context.DeadlineExceeded
	}
	return nil
}

// Cause returns the reason why the context ended, or nil. [context.Cause] returns the same.
func (c *Context) Cause() error {
	c.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state.Load() {
	case released:
		return context.Canceled
	case canceled, exceeded:
		return c.cause
	}
	return nil
}

// Value returns the parent's value for key. [context.Cause] calls Value with an internal key of
// package context. After c has ended, Value returns for this key a context that has the cause of c.
func (c *Context) Value(key any) any {
	if !c.ended() {
		return c.parent.Value(key)
	}
	stand, cancel := context.WithCancelCause(context.WithoutCancel(c.parent))
	cancel(c.Cause())
	return stand.Value(key)
}

// AfterFunc calls f when the context ends. f must not block. Package context calls
// AfterFunc for contexts derived from c. Other packages should call [context.AfterFunc].
func (c *Context) AfterFunc(f func()) (stop func() bool) { return derive(c, f) }

// Cancel ends the context with the error context.Canceled. The method Cause then returns
// the argument cause, or context.Canceled if cause is nil. Cancel releases the timer and
// the registration with the parent. If the context has already ended, Cancel has no effect.
func (c *Context) Cancel(cause error) {
	c.poll()
	c.mu.Lock()
	c.endLocked(canceled, cmp.Or(cause, context.Canceled), false)
}

// Release ends the context, as Cancel(nil) does. Components call it at the end of a request.
// Release is faster than Cancel, because it does not check whether the parent or the deadline has
// already ended the context.
func (c *Context) Release() {
	if c.state.CompareAndSwap(idle, released) {
		return
	}
	c.mu.Lock()
	c.endLocked(canceled, context.Canceled, false)
}

// Lift removes the time limit and returns true. If the limit has already ended the context, Lift
// returns false. A limit that has passed ends the context only when it is checked. Err, Cause,
// Expired and Cancel check it, and so does a timer, which Done, AfterFunc and Watch start. If it
// has passed without a check, Lift returns true, and the context continues.
func (c *Context) Lift() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lifted = true
	if c.timer != nil {
		c.timer.Stop()
	}
	return !c.expired
}

// Expired reports whether the context ended at its own time limit. Cause then returns the
// cause that was passed to Init.
func (c *Context) Expired() bool {
	c.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expired
}

// Ended reports whether ctx has ended, for layers that admit requests. It does not read the
// clock. Therefore it may return false after the deadline of a [Context] that no component
// watches.
func Ended(ctx context.Context) bool {
	for {
		c, ok := ctx.(*Context) // faster than linked
		if !ok {
			l, ok := ctx.(linked)
			if !ok {
				return ctx.Err() != nil
			}
			c, ctx = l.link()
		}
		if c != nil {
			if c.ended() {
				return true
			}
			ctx = c.parent
		}
	}
}

// Cause returns the same as [context.Cause]. It does not allocate if ctx is, embeds or wraps a
// [Context].
func Cause(ctx context.Context) error {
	own, other := find(ctx)
	if own == nil {
		return context.Cause(other)
	}
	return own.Cause()
}

// linked is implemented by [Context], by [Wrapper], and by contexts that embed one of them. With
// the method link, find and Ended go from a context to its parent. For a Context, link returns the
// Context and its parent. For a Wrapper, it returns nil and the parent.
type linked interface {
	link() (own *Context, parent context.Context)
}

// find returns as own the Context that ctx is or embeds. If ctx is or embeds a [Wrapper], find
// continues with the parent of the Wrapper. If find reaches a context of another package, own is
// nil, and other is that context. Otherwise other is nil.
func find(ctx context.Context) (own *Context, other context.Context) {
	for {
		l, ok := ctx.(linked)
		if !ok {
			return nil, ctx
		}
		if own, ctx = l.link(); own != nil {
			return own, nil
		}
	}
}

func (c *Context) link() (own *Context, parent context.Context) { return c, c.parent }

func (c *Context) ended() bool { return c.state.Load() >= released }

// poll ends c if its deadline has passed or its parent has ended. The timer of c calls poll. If the
// parent is a context of another package, [context.AfterFunc] also calls it. The caller must not
// hold c.mu, because poll may end the parent. The parent then calls c.ContextDone, which locks
// c.mu.
func (c *Context) poll() {
	if c.ended() {
		return
	}
	above := c.parent.Err()
	c.mu.Lock()
	if _, ended := c.pollLocked(above); !ended {
		c.mu.Unlock()
	}
}

// noLimit is the result of pollLocked for a context without a deadline.
const noLimit time.Duration = math.MaxInt64

// pollLocked ends c if its deadline has passed or its parent has ended. It then unlocks mu and
// returns 0 and true. Otherwise it leaves mu locked and returns the time until the deadline
// (noLimit without a deadline) and false. The argument above is the error of the parent, or nil.
// The caller must hold mu.
func (c *Context) pollLocked(above error) (left time.Duration, ended bool) {
	left = noLimit
	if !c.deadline.IsZero() && !c.lifted {
		left = time.Until(c.deadline)
	}
	switch {
	case left <= 0 && (above == nil || c.endedFirst(above)):
		to := exceeded
		if c.hidden {
			to = canceled
		}
		c.endLocked(to, c.cause, true)
	case above != nil:
		c.endLocked(stateOf(above), Cause(c.parent), false)
	default:
		return left, false
	}
	return 0, true
}

// endedFirst reports whether c ended before its parent, although both have ended now. It returns
// true if the parent ended at its deadline and the deadline of c is earlier. The argument above is
// the error of the parent.
func (c *Context) endedFirst(above error) bool {
	deadline, ok := c.parent.Deadline()
	return errors.Is(above, context.DeadlineExceeded) && ok && c.deadline.Before(deadline)
}

// stateOf returns the state that a context gets when its parent has ended with err.
func stateOf(err error) uint32 {
	if errors.Is(err, context.DeadlineExceeded) {
		return exceeded
	}
	return canceled
}

// activate registers c with its parent and starts the timer. It does nothing if c is active
// or has ended.
func (c *Context) activate() {
	if c.state.Load() != idle {
		return
	}
	own, other := find(c.parent)
	above := c.parent.Err()
	c.mu.Lock()
	left, ended := c.pollLocked(above)
	if ended {
		return
	}
	if !c.state.CompareAndSwap(idle, active) {
		c.mu.Unlock()
		return
	}
	limited, canEnd := left < noLimit, own == nil && other.Done() != nil
	if limited || canEnd {
		poll := c.poll // one allocation for both uses
		if limited {
			c.timer = time.AfterFunc(left, poll)
		}
		if canEnd {
			c.stop = context.AfterFunc(other, poll)
		}
	}
	c.mu.Unlock()
	if own == nil {
		return
	}
	own.watch(c)
	if c.ended() { // possibly before watch
		own.unwatch(c)
	}
}

// ContextDone implements [Watcher]. The parent calls ContextDone when the parent has ended.
// c then ends with the same cause.
func (c *Context) ContextDone(cause error) {
	to := stateOf(c.parent.Err())
	c.mu.Lock()
	c.endLocked(to, cause, false)
}

// endLocked ends c and notifies the watchers of c. The argument to is the new state, canceled or
// exceeded. The argument limit reports whether c ends because its own deadline has passed. If c had
// already ended, endLocked does nothing. The caller must hold mu, and endLocked unlocks mu.
func (c *Context) endLocked(to uint32, cause error, limit bool) {
	old := c.state.Load()
	// The swap fails if Release ends c at the same time.
	if old >= released || !c.state.CompareAndSwap(old, to) {
		c.mu.Unlock()
		return
	}
	c.cause, c.expired = cause, limit
	if c.timer != nil {
		c.timer.Stop()
	}
	below := c.below.end()
	c.mu.Unlock()
	switch {
	case c.stop != nil:
		c.stop()
	case old == active:
		if own, _ := find(c.parent); own != nil {
			own.unwatch(c)
		}
	}
	below.notify(cause)
}
