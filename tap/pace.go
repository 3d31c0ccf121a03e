package tap

import (
	"sync/atomic"
	"time"
)

// pace bounds how many requests a second a watcher is shown: as many at once,
// and then one after the other, so that being watched comes in no gusts. It is
// the generic cell rate algorithm, with a second's tolerance, on a grid of its
// own: each watcher has its instants, so that many of the same rate do not all
// take the same request, which they would delay together, but for those at once.
type pace struct {
	every time.Duration // between two; 0 is no bound
	phase int64         // of the grid, less than every
	due   atomic.Int64  // when what was shown would have been, one after the other
}

// perSecond sets the bound, before the first use. Those with numbers that
// follow each other have phases that are far apart.
func (p *pace) perSecond(n, number uint32) {
	if n == 0 {
		return
	}
	const golden = 0x9e3779b9 // 2³² by the golden ratio
	p.every = max(time.Second/time.Duration(n), 1)
	p.phase = int64(float64(p.every) * float64(number*golden) / (1 << 32))
}

// spent is asked before a request is matched.
func (p *pace) spent(now int64) bool {
	return p.every > 0 && p.next(p.due.Load(), now) > now+int64(time.Second)
}

// take reports whether one more request may be shown.
func (p *pace) take() bool {
	if p.every == 0 {
		return true
	}
	for now := time.Now().UnixNano(); ; {
		due := p.due.Load()
		next := p.next(due, now)
		if next > now+int64(time.Second) {
			return false
		}
		if p.due.CompareAndSwap(due, next) {
			return true
		}
	}
}

// next is when one more would be due. A clock that was set back begins anew.
func (p *pace) next(due, now int64) int64 {
	if due < now || due > now+2*int64(time.Second) {
		due = now - (now-p.phase)%int64(p.every)
	}
	return due + int64(p.every)
}
