// Package reqctx has a context for requests that is cheap as long as no component waits
// for its end.
//
// A [Context] costs one allocation, or none if it is part of a larger struct. It registers with
// its parent and starts a timer for its deadline only when a component asks to be notified of
// its end. Contexts of package context that are derived from it need no goroutine.
package reqctx

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Context is a cancelable context with an optional time limit. Init initializes it.
// After that it is safe for concurrent use.
type Context struct {
	parent   context.Context //nolint:containedctx // it is a context
	deadline time.Time       // zero without a deadline, or if the parent's is earlier
	cause    error           // the cause at the deadline
	hidden   bool            // the method Deadline does not return the deadline

	ended atomic.Bool // whether err is set

	mu     sync.Mutex
	err    error // the result of Err
	why    error // the result of Cause
	active bool  // registered with the parent, and the timer runs
	lifted bool  // the deadline no longer applies
	timer  *time.Timer
	above  Registration // the registration with the parent
	below  watchers
	done   chan struct{}
	stand  context.Context //nolint:containedctx // provides Value after the end, for context.Cause
}

var _ context.Context = (*Context)(nil)

// New returns a context that Init has initialized.
func New(parent context.Context, d time.Duration, cause error) *Context {
	c := new(Context)
	c.Init(parent, d, cause)
	return c
}

// Init initializes a context that ends with its parent, by Cancel, and, if d > 0, after
// d with the given cause.
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

// InitHidden is Init with a limit that Lift can remove. Deadline does not return the
// limit, because callers may have used it before it is removed. After the limit Err
// returns [context.Canceled].
func (c *Context) InitHidden(parent context.Context, d time.Duration, cause error) {
	c.parent, c.cause, c.hidden = parent, cause, true
	if d > 0 {
		c.deadline = time.Now().Add(d)
	}
}

// Deadline returns the earliest deadline of c and its parents, except hidden ones.
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
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err returns nil, [context.Canceled] or [context.DeadlineExceeded].
func (c *Context) Err() error {
	err, _ := c.state()
	return err
}

// Cause returns the reason why the context ended, or nil. [context.Cause] returns the same.
func (c *Context) Cause() error {
	_, why := c.state()
	return why
}

// Value returns the value of the parent. After the end it also supports
// [context.Cause], which looks for a context of package context.
func (c *Context) Value(key any) any {
	if !c.ended.Load() {
		return c.parent.Value(key)
	}
	c.mu.Lock()
	if c.stand == nil {
		stand, cancel := context.WithCancelCause(context.WithoutCancel(c.parent))
		cancel(c.why)
		c.stand = stand
	}
	c.mu.Unlock()
	return c.stand.Value(key)
}

// AfterFunc calls f, which must not block, when the context ends. Package context calls
// it for contexts derived from c. Other packages should call [context.AfterFunc].
func (c *Context) AfterFunc(f func()) (stop func() bool) { return derive(c, f) }

// Cancel ends the context with context.Canceled and with cause, unless that is nil. It
// releases the timer and the registration with the parent. Later calls have no effect.
func (c *Context) Cancel(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	c.mu.Lock()
	c.pollLocked()
	c.endLocked(context.Canceled, cause)
}

// Release is Cancel(nil) for the end of a request. It is faster, because it does not check
// whether the parent or the deadline ended the context before.
func (c *Context) Release() {
	c.mu.Lock()
	if c.err == nil && !c.active {
		c.setLocked(context.Canceled, context.Canceled)
		c.mu.Unlock()
		return
	}
	c.endLocked(context.Canceled, context.Canceled)
}

// Lift removes the time limit. It returns false if the limit has already ended the context.
func (c *Context) Lift() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollLocked()
	c.lifted = true
	if c.timer != nil {
		c.timer.Stop()
	}
	return !c.expiredLocked()
}

// Expired reports whether the context's own time limit ended it.
func (c *Context) Expired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollLocked()
	return c.expiredLocked()
}

func (c *Context) expiredLocked() bool {
	return c.err != nil && c.cause != nil && c.why == c.cause //nolint:errorlint // the same value
}

// Ended reports whether ctx has ended. For a context that no component watches, it does
// not read the clock, and may return false shortly after the deadline. It is for layers
// that admit requests.
func Ended(ctx context.Context) bool {
	for {
		switch c := ctx.(type) {
		case interface{ self() *Context }:
			r := c.self()
			if r.ended.Load() {
				return true
			}
			ctx = r.parent
		case interface{ base() context.Context }:
			ctx = c.base()
		default:
			return ctx.Err() != nil
		}
	}
}

func (c *Context) self() *Context { return c }

// state returns the results of Err and Cause. It first checks whether the context has ended.
func (c *Context) state() (err, why error) {
	c.mu.Lock()
	c.pollLocked()
	if c.err != nil || !c.active {
		err, why = c.err, c.why
		c.mu.Unlock()
		return err, why
	}
	c.mu.Unlock()
	// The parent may notify c a little later, on another goroutine.
	if c.parent.Err() != nil {
		c.ContextDone(context.Cause(c.parent))
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err, c.why
	}
	return nil, nil
}

// pollLocked ends a context that is not active if its deadline has passed or its parent
// has ended.
func (c *Context) pollLocked() {
	if c.err != nil || c.active {
		return
	}
	above := c.parent.Err()
	switch {
	case c.overdueLocked() && (above == nil || c.endedFirst(above)):
		c.setLocked(c.limitError(), c.cause)
	case above != nil:
		c.setLocked(above, context.Cause(c.parent))
	}
}

func (c *Context) overdueLocked() bool {
	return !c.deadline.IsZero() && !c.lifted && time.Until(c.deadline) <= 0
}

// endedFirst reports whether the limit passed before the parent's deadline, if that
// ended the parent.
func (c *Context) endedFirst(above error) bool {
	deadline, ok := c.parent.Deadline()
	return errors.Is(above, context.DeadlineExceeded) && ok && c.deadline.Before(deadline)
}

func (c *Context) limitError() error {
	if c.hidden {
		return context.Canceled
	}
	return context.DeadlineExceeded
}

func (c *Context) setLocked(err, why error) {
	c.err, c.why = err, why
	c.ended.Store(true)
}

// activate registers c with its parent and starts the timer, unless it has done so.
func (c *Context) activate() {
	c.mu.Lock()
	c.pollLocked()
	if c.err != nil || c.active {
		c.mu.Unlock()
		return
	}
	c.active = true
	if !c.deadline.IsZero() && !c.lifted {
		c.timer = time.AfterFunc(time.Until(c.deadline), c.expire)
	}
	c.mu.Unlock()

	above := Watch(c.parent, c)
	c.mu.Lock()
	if c.err == nil {
		c.above, above = above, Registration{}
	}
	c.mu.Unlock()
	above.Stop()
}

// ContextDone implements [Watcher]. It ends c because the parent has ended.
func (c *Context) ContextDone(cause error) {
	err := c.parent.Err()
	c.mu.Lock()
	c.endLocked(err, cause)
}

// expire ends c at its limit. It is called by the timer.
func (c *Context) expire() {
	c.mu.Lock()
	if c.lifted {
		c.mu.Unlock()
		return
	}
	c.endLocked(c.limitError(), c.cause)
}

// endLocked ends c and notifies the watchers, unless c has ended. It unlocks mu.
func (c *Context) endLocked(err, cause error) {
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.setLocked(err, cause)
	if c.done != nil {
		close(c.done)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	above, below := c.above, c.below
	c.above, c.below = Registration{}, watchers{}
	c.mu.Unlock()
	above.Stop()
	below.notify(cause)
}
