// Package reqctx implements a request context that is cheap as long as nothing waits for its end.
//
// A [Context] costs one allocation, or none if it is part of a larger struct. It registers with
// its parent and starts a timer for its deadline only when a component asks to be notified of its
// end. Contexts that package context derives from it need no goroutine.
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

	limit time.Duration // the length of a limit that Pause stops; 0 if it cannot be paused

	hidden  bool          // the method Deadline does not return the deadline
	lifted  bool          // the deadline no longer applies; guarded by mu
	expired bool          // the context ended at its own deadline; guarded by mu
	state   atomic.Uint32 // one of the states below; changed with mu, except by Release
	pauses  int32         // number of callers of Pause that have not called Resume; guarded by mu

	mu       sync.Mutex
	alarm    *alarm      // runs while a time limit applies and a component waits; nil otherwise
	stop     func() bool // ends the registration with a parent of another package
	watchers watchers    // the watchers of this context, and the channel of Done
}

var _ context.Context = (*Context)(nil)

// The states of a Context.
const (
	idle     uint32 = iota // no component asked to be notified of the end
	active                 // registered with the parent, and the alarm runs
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
// it also ends after d, with the given cause.
func (c *Context) Init(parent context.Context, d time.Duration, cause error) {
	c.parent = parent
	c.cause = cause
	if d <= 0 {
		return
	}
	deadline := time.Now().Add(d)
	// An earlier deadline of the parent ends this context too.
	if parentDeadline, ok := parent.Deadline(); !ok || deadline.Before(parentDeadline) {
		c.deadline = deadline
	}
}

// InitHidden is like Init, but Lift can remove the time limit. Deadline ignores this limit,
// because a caller must not rely on a deadline that Lift may remove. After the limit has passed,
// Err returns [context.Canceled].
func (c *Context) InitHidden(parent context.Context, d time.Duration, cause error) {
	c.parent = parent
	c.cause = cause
	c.hidden = true
	if d > 0 {
		c.deadline = time.Now().Add(d)
	}
}

// InitPausable is like InitHidden, but [Context.Pause] can also stop the time limit.
func (c *Context) InitPausable(parent context.Context, d time.Duration, cause error) {
	c.InitHidden(parent, d, cause)
	c.limit = d
}

// pausableKey is the key for which Value returns the nearest Context with a pausable limit.
type pausableKey struct{}

// Pausable returns the nearest Context with a time limit from InitPausable: ctx itself or one of
// its parents, or nil if there is none.
func Pausable(ctx context.Context) *Context {
	c, _ := ctx.Value(pausableKey{}).(*Context)
	return c
}

// Pause stops c's limit, and its parents' pausable limits, until Resume has been called as often as
// Pause. Pause and Resume do nothing for a nil c.
func (c *Context) Pause() {
	for ; c != nil; c = Pausable(c.parent) {
		c.mu.Lock()
		c.pauses++
		c.mu.Unlock()
	}
}

// Resume restarts the limits that Pause has stopped, at their full length.
func (c *Context) Resume() {
	for ; c != nil; c = Pausable(c.parent) {
		c.mu.Lock()
		if c.pauses--; c.pauses == 0 && !c.lifted {
			c.restartLocked()
		}
		c.mu.Unlock()
	}
}

// restartLocked starts the time limit again at its full length, after Resume. The caller must hold mu.
func (c *Context) restartLocked() {
	c.deadline = time.Now().Add(c.limit)
	if c.state.Load() == active { // otherwise activate starts the alarm, or the context has ended
		c.startLocked(c.limit)
	}
}

// startLocked starts the alarm, so that it checks c after the time d. The caller must hold mu.
func (c *Context) startLocked(d time.Duration) {
	if c.alarm == nil {
		c.alarm = newAlarm(c)
	}
	c.alarm.start(d)
}

// stopLocked releases the alarm, if there is one. The caller must hold mu.
func (c *Context) stopLocked() {
	if c.alarm != nil {
		c.alarm.release()
		c.alarm = nil
	}
}

// Deadline returns the earliest deadline of c and its parents. It ignores hidden limits:
// see InitHidden.
func (c *Context) Deadline() (time.Time, bool) {
	if c.hidden || c.deadline.IsZero() { // Resume changes the deadline of a hidden limit
		return c.parent.Deadline()
	}
	return c.deadline, true
}

// Done returns a channel that is closed when the context ends.
func (c *Context) Done() <-chan struct{} {
	c.activate()
	c.mu.Lock()
	defer c.mu.Unlock()
	done, ok := c.watchers.done()
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

// Value returns the parent's value for key. For pausableKey, it returns c itself if c has a pausable
// limit.
//
// [context.Cause] calls Value with an internal key, to find a context of package context from which
// it can read the cause. Therefore, once c has ended, Value passes keys to such a context, which has
// c's cause and the parent's values.
func (c *Context) Value(key any) any {
	if _, ok := key.(pausableKey); ok {
		if c.limit > 0 {
			return c
		}
		return c.parent.Value(key)
	}
	if !c.ended() {
		return c.parent.Value(key)
	}
	// This derived context exists only to answer the question for the cause.
	canceledCtx, cancel := context.WithCancelCause(context.WithoutCancel(c.parent))
	cancel(c.Cause())
	return canceledCtx.Value(key)
}

// AfterFunc calls f when the context ends. f must not block. Package context calls
// AfterFunc for contexts derived from c. Other packages should call [context.AfterFunc].
func (c *Context) AfterFunc(f func()) (stop func() bool) { return derive(c, f) }

// Cancel ends the context with the error context.Canceled. Cause then returns cause, or
// context.Canceled if cause is nil. Cancel releases the alarm and the registration with the parent.
// If the context has already ended, Cancel does nothing.
func (c *Context) Cancel(cause error) {
	c.poll()
	c.mu.Lock()                                                      // until endAndUnlock
	c.endAndUnlock(canceled, cmp.Or(cause, context.Canceled), false) // not by its deadline
}

// Release ends the context like Cancel(nil), and is called at the end of a request. Release is
// faster than Cancel, because it does not check whether the parent or the deadline has already
// ended the context.
func (c *Context) Release() {
	if c.state.CompareAndSwap(idle, released) {
		return
	}
	c.mu.Lock()
	c.endAndUnlock(canceled, context.Canceled, false) // not by its deadline
}

// Lift removes the time limit and returns true. If the limit has already ended the context, Lift
// returns false. A limit that has passed ends the context only when it is checked. Err, Cause,
// Expired and Cancel check it, and so does a timer, which Done, AfterFunc and Watch start. If it
// has passed without a check, Lift returns true, and the context continues.
func (c *Context) Lift() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lifted = true
	c.stopLocked()
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
// clock, so after the deadline of a [Context] that nothing watches, it may still return false.
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
	nearest, foreign := find(ctx)
	if nearest == nil {
		return context.Cause(foreign)
	}
	return nearest.Cause()
}

// linked is implemented by [Context], by [Wrapper], and by contexts that embed one of them. With
// link, find and Ended go from a context to its parent. For a Context, link returns the Context and
// its parent. For a Wrapper, it returns nil and the parent.
type linked interface {
	link() (reqCtx *Context, parent context.Context)
}

// find returns the Context that ctx is or embeds as nearest. If ctx is or embeds a [Wrapper], find
// continues with the Wrapper's parent. If find reaches a context of another package, it returns
// that as foreign, and nearest is nil.
func find(ctx context.Context) (nearest *Context, foreign context.Context) {
	for {
		l, ok := ctx.(linked)
		if !ok {
			return nil, ctx
		}
		if nearest, ctx = l.link(); nearest != nil {
			return nearest, nil
		}
	}
}

// link implements linked: a Context is the nearest one itself.
func (c *Context) link() (reqCtx *Context, parent context.Context) { return c, c.parent }

// ended reports whether the context has ended. It does not check the deadline or the parent.
func (c *Context) ended() bool { return c.state.Load() >= released }

// poll ends c if its deadline has passed or its parent has ended. c's alarm calls poll, and so does
// [context.AfterFunc] if the parent is a context from another package. The caller must not hold
// c.mu, because poll may end the parent. The parent then calls c.ContextDone, which locks c.mu.
func (c *Context) poll() {
	if c.ended() {
		return
	}
	// Before the lock, because Err of the parent may lock the parent, and the parent calls this
	// context.
	parentErr := c.parent.Err()
	if parentErr == nil && c.limit == 0 && c.deadline.IsZero() { // only Resume changes a deadline, if there is a limit
		return
	}
	c.mu.Lock()
	if _, ended := c.pollAndUnlock(parentErr); !ended { // otherwise mu is unlocked
		c.mu.Unlock()
	}
}

// noLimit is the result of pollAndUnlock for a context without a deadline.
const noLimit time.Duration = math.MaxInt64

// pollAndUnlock ends c if its deadline has passed or its parent has ended. It then unlocks mu and
// returns 0 and true. Otherwise it leaves mu locked and returns the time until the deadline
// (noLimit without a deadline) and false. parentErr is the parent's error, or nil. The caller must
// hold mu.
func (c *Context) pollAndUnlock(parentErr error) (remaining time.Duration, ended bool) {
	remaining = noLimit
	if !c.deadline.IsZero() && !c.lifted && c.pauses == 0 {
		remaining = time.Until(c.deadline)
	}
	switch {
	// If both have ended, the one with the earlier deadline counts.
	case remaining <= 0 && (parentErr == nil || c.endedFirst(parentErr)):
		state := exceeded
		if c.hidden {
			state = canceled
		}
		c.endAndUnlock(state, c.cause, true) // by its own deadline
	case parentErr != nil:
		c.endAndUnlock(stateOf(parentErr), Cause(c.parent), false) // by its parent
	default:
		return remaining, false
	}
	return 0, true
}

// endedFirst reports whether c ended before its parent, although both have ended now. It returns
// true if the parent ended at its deadline and c's is earlier. parentErr is the parent's error.
func (c *Context) endedFirst(parentErr error) bool {
	deadline, ok := c.parent.Deadline()
	return errors.Is(parentErr, context.DeadlineExceeded) && ok && c.deadline.Before(deadline)
}

// stateOf returns the state for a context whose parent has ended with err.
func stateOf(err error) uint32 {
	if errors.Is(err, context.DeadlineExceeded) {
		return exceeded
	}
	return canceled
}

// activate registers c with its parent and starts the alarm. It does nothing if c is active
// or has ended.
func (c *Context) activate() {
	if c.state.Load() != idle {
		return
	}
	nearest, foreign := find(c.parent)
	// As in poll, before the lock.
	parentErr := c.parent.Err()
	c.mu.Lock()
	remaining, ended := c.pollAndUnlock(parentErr)
	if ended {
		return // mu is unlocked
	}
	if !c.state.CompareAndSwap(idle, active) {
		c.mu.Unlock()
		return
	}
	if remaining < noLimit {
		c.startLocked(remaining)
	}
	if nearest == nil && foreign.Done() != nil {
		c.stop = context.AfterFunc(foreign, c.poll)
	}
	c.mu.Unlock()
	if nearest == nil {
		return
	}
	// Without mu, because the parent calls ContextDone at once if it has ended.
	nearest.watch(c)
	// Otherwise the parent would keep a context that has ended.
	if c.ended() { // possibly before watch
		nearest.unwatch(c)
	}
}

// ContextDone implements [Watcher]. The parent calls ContextDone when it has ended, and c then
// ends with the same cause.
func (c *Context) ContextDone(cause error) {
	state := stateOf(c.parent.Err())
	c.mu.Lock()
	c.endAndUnlock(state, cause, false) // not by its own deadline
}

// endAndUnlock ends c and notifies its watchers. state is the new state, canceled or exceeded.
// limit reports whether c ends because its own deadline has passed. If c had already ended,
// endAndUnlock only unlocks mu. The caller must have locked mu, and must not unlock it: endAndUnlock does so in any
// case, because parents and watchers must be notified without mu.
func (c *Context) endAndUnlock(state uint32, cause error, limit bool) {
	old := c.state.Load()
	// The swap fails if Release ends c at the same time.
	if old >= released || !c.state.CompareAndSwap(old, state) {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	c.expired = limit
	c.stopLocked()
	watchers := c.watchers.end()
	c.mu.Unlock()
	switch {
	case c.stop != nil:
		c.stop()
	case old == active:
		if nearest, _ := find(c.parent); nearest != nil {
			nearest.unwatch(c)
		}
	}
	watchers.notify(cause)
}
