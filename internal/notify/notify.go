// Package notify lets goroutines wait for a condition that other goroutines change
// without a lock, such as a free slot of a limit.
package notify

import (
	"context"
	"sync"
	"sync/atomic"
)

// Broadcast wakes all waiting goroutines. The zero value is ready to use. It must
// not be copied.
type Broadcast struct {
	waiting atomic.Int32 // the number of goroutines in Wait, so that Wake usually takes no lock
	mu      sync.Mutex
	ch      chan struct{} // closed by Wake; nil until somebody waits
}

// Wake makes each waiting goroutine check its condition again. Call Wake after a change. If
// no goroutine waits, it costs one atomic load.
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

// Wait returns nil when ok returns true, or the cause of ctx when ctx ends. It calls ok
// before it checks ctx. ok must be safe for concurrent use.
func (b *Broadcast) Wait(ctx context.Context, ok func() bool) error {
	if ok() {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Before ok is checked again: a Wake after that check sees that a goroutine waits.
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for {
		b.mu.Lock()
		if b.ch == nil {
			b.ch = make(chan struct{})
		}
		ch := b.ch
		b.mu.Unlock()
		// A Wake after this check closes ch.
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
