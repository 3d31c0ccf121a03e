package httplayer

import (
	"slices"
	"time"
)

// reapLater sees to it that the reaper comes. It comes at the earliest time
// that it may be needed, not anew for each request. The caller holds mu.
func (p *pool) reapLater(d time.Duration) {
	if p.reaping {
		return
	}
	p.reaping = true
	if p.reaper == nil {
		p.reaper = time.AfterFunc(d, p.reap)
	} else {
		p.reaper.Reset(d)
	}
}

// reap closes the connections that were idle for too long.
func (p *pool) reap() {
	now := time.Now()
	p.mu.Lock()
	p.reaping = false
	n := 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) >= p.endpoint.opts.idleTimeout {
		p.strike(p.idle[n])
		n++
	}
	old := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	if len(p.idle) > 0 {
		p.reapLater(p.endpoint.opts.idleTimeout - now.Sub(p.idle[0].since))
	}
	p.mu.Unlock()
	closeAll(old)
	p.endpoint.wake.Wake()
}

// shut closes the idle connections now, and the others when they are put.
func (p *pool) shut() {
	p.mu.Lock()
	p.closed = true
	old := p.idle
	p.idle = nil
	for _, c := range old {
		p.strike(c)
	}
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	closeAll(old)
}

func closeAll(conns []*h1Conn) {
	for _, c := range conns {
		_ = c.cc.Close()
	}
}
