package tap

import (
	"sync/atomic"
	"time"
)

// pace bounds how many requests a second a watcher is shown: as many at once,
// and then one after the other, so that being watched comes in no gusts. It is
// the generic cell rate algorithm, with a second's tolerance.
type pace struct {
	every time.Duration // between two; 0 is no bound
	due   atomic.Int64  // when what was shown would have been, one after the other
}

// perSecond sets the bound, before the first use.
func (p *pace) perSecond(n uint32) {
	if n > 0 {
		p.every = max(time.Second/time.Duration(n), 1)
	}
}

// spent is asked before a request is matched.
func (p *pace) spent() bool {
	if p.every == 0 {
		return false
	}
	now := time.Now().UnixNano()
	return p.next(p.due.Load(), now) > now+int64(time.Second)
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
		due = now
	}
	return due + int64(p.every)
}
