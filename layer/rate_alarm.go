package layer

import (
	"context"
	"sync"
	"time"

	"github.com/gotower/gotower/internal/wake"
)

// rateAlarm wakes those who wait for a token. However many they are, there is
// one timer.
type rateAlarm struct {
	rung wake.Broadcast

	mu      sync.Mutex
	waiting int
	timer   *time.Timer // nil unless it is set to ring
}

// wait returns nil once until is 0 or less, or the cause of ctx. until tells
// how long it takes at least; rateNever sets no timer.
func (a *rateAlarm) wait(ctx context.Context, until func() time.Duration) error {
	if until() <= 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.enter()
	defer a.leave()
	return a.rung.Wait(ctx, func() bool {
		d := until()
		if d <= 0 {
			return true
		}
		a.set(d)
		return false
	})
}

func (a *rateAlarm) enter() {
	a.mu.Lock()
	a.waiting++
	a.mu.Unlock()
}

// leave stops the timer when nobody is left to hear it.
func (a *rateAlarm) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	if a.waiting == 0 && a.timer != nil && a.timer.Stop() {
		a.timer = nil
	}
}

// set makes the alarm ring after d, unless it will ring anyway: tokens are only
// taken, so whoever set it first knew of no later time.
func (a *rateAlarm) set(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer == nil && d < rateNever {
		a.timer = time.AfterFunc(d, a.ring)
	}
}

func (a *rateAlarm) ring() {
	a.mu.Lock()
	a.timer = nil
	a.mu.Unlock()
	a.rung.Wake()
}
