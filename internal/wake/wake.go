// Package wake lets any number of goroutines wait for a condition that others
// change without a lock: limits, queues and ready sets tell their waiters with
// it that there may be room again.
package wake

import (
	"context"
	"sync"
	"sync/atomic"
)

// Broadcast wakes all who wait. The zero value is ready to use; it must not be
// copied.
type Broadcast struct {
	waiting atomic.Int32
	mu      sync.Mutex
	ch      chan struct{}
}

// Wake makes every waiter look at its condition again. Call it after the
// change. With nobody waiting it costs one atomic load.
func (b *Broadcast) Wake() {
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
	b.mu.Unlock()
}

// Wait returns nil once ok does, or the cause of ctx. It asks ok before it
// looks at ctx. ok must be safe for concurrent use.
func (b *Broadcast) Wait(ctx context.Context, ok func() bool) error {
	if ok() {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for {
		b.mu.Lock()
		if b.ch == nil {
			b.ch = make(chan struct{})
		}
		ch := b.ch
		b.mu.Unlock()
		// A change after this look finds ch and closes it.
		if ok() {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			if ok() {
				return nil
			}
			return context.Cause(ctx)
		}
	}
}
