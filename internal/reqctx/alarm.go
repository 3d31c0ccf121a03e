package reqctx

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Detach returns a context with the values of ctx that never ends, as [context.WithoutCancel] does.
// It is the parent of the requests on a connection. Its method Value does not allocate, and the time
// limits of these requests use the same timers one after the other.
func Detach(ctx context.Context) context.Context {
	return &detached{Context: context.WithValue(context.WithoutCancel(ctx), detachedKey{}, nil)}
}

// detachedKey is a key for which nobody asks. Value of a context.WithValue around the detached context
// does not allocate, unlike Value of the detached context itself.
type detachedKey struct{}

// detached is the context that Detach returns, with the alarms that no Context below it uses.
type detached struct {
	context.Context //nolint:containedctx // it is a context

	mu   sync.Mutex
	free []*alarm
}

// alarm is a timer for the time limit of one Context at a time. A new timer for each request would cost
// two allocations, and more time than setting one again.
type alarm struct {
	timer *time.Timer
	ctx   atomic.Pointer[Context] // nil while no Context uses the alarm
	owner *detached               // gets the alarm back; may be nil
}

// newAlarm returns an alarm for c, which is a free one if c belongs to a connection that has one.
func newAlarm(c *Context) *alarm {
	// Above the outermost Context is that of the connection, if Detach made it. Otherwise owner is nil.
	nearest, foreign := find(c.parent)
	for nearest != nil {
		nearest, foreign = find(nearest.parent)
	}
	owner, _ := foreign.(*detached)
	a := owner.take()
	if a == nil {
		a = &alarm{owner: owner}
	}
	a.ctx.Store(c)
	return a
}

// take returns a free alarm, or nil if there is none. d may be nil.
func (d *detached) take() *alarm {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.free) - 1
	if last < 0 {
		return nil
	}
	a := d.free[last]
	d.free = d.free[:last]
	return a
}

// start makes the alarm check its Context after the time d, and not at the time of an earlier start.
func (a *alarm) start(d time.Duration) {
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.ring)
		return
	}
	a.timer.Reset(d)
}

// ring checks the alarm's Context. If the alarm has changed its Context since the timer fired, the check
// does no harm.
func (a *alarm) ring() {
	if c := a.ctx.Load(); c != nil {
		c.poll()
	}
}

// release stops the alarm, which its Context does not need any more.
func (a *alarm) release() {
	a.timer.Stop()
	a.ctx.Store(nil)
	if d := a.owner; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.free = append(d.free, a)
	}
}
