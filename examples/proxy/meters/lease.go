package meters

import (
	"context"
	"sync"
	"time"
)

// lease is the use of series by one endpoint, route, balancer or listener. It
// ends a while after its context, and lets them go then.
type lease struct {
	endless bool // there is nothing to remember

	mu    sync.Mutex
	ended bool
	drops []func()
}

func (m *Meters) lease(ctx context.Context) *lease {
	l := &lease{endless: ctx.Done() == nil}
	context.AfterFunc(ctx, func() { time.AfterFunc(m.retain, l.end) })
	return l
}

func (l *lease) end() {
	l.mu.Lock()
	drops := l.drops
	l.ended, l.drops = true, nil
	l.mu.Unlock()
	for _, drop := range drops {
		drop()
	}
}

// add has drop called when the lease ends; at once if it has.
func (l *lease) add(drop func()) {
	if l.endless {
		return
	}
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.drops = append(l.drops, drop)
	}
	l.mu.Unlock()
	if ended {
		drop()
	}
}
