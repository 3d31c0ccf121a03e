package httplayer

import (
	"slices"
	"time"
)

// renew makes a successor in the background for a connection that is too old.
// Whoever finds that it is goes on by the old one.
func (p *pool) renew(old *h1Conn) {
	if !p.excess() || !p.heirs.begin() {
		return
	}
	go func() {
		err := p.succeed(old)
		p.heirs.end(err)
		if err == nil {
			p.report(0, nil)
		}
	}()
}

// excess reports whether there may be one connection beside those that are
// bounded: there is none yet.
func (p *pool) excess() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoint.opts.maxConns <= 0 || p.conns <= p.endpoint.opts.maxConns
}

// succeed makes a connection and has it take the place of old.
func (p *pool) succeed(old *h1Conn) error {
	c, err := p.connect(old.form)
	if err != nil {
		return err
	}
	if !p.adopt(c) {
		_ = c.cc.Close()
		return &peerError{errUseless}
	}
	p.supersede(old)
	return nil
}

// adopt makes a connection one of the pool, idle at once: counted as in use it
// would keep out a request.
func (p *pool) adopt(c *h1Conn) bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	p.conns++
	p.open[c] = struct{}{}
	p.idleLocked(c)
	p.mu.Unlock()
	p.watch(c)
	p.endpoint.wake.Wake()
	return c.cc.Err() == nil
}

// supersede closes a connection whose place was taken because of its age: now
// if it is idle, else when its response has ended.
func (p *pool) supersede(old *h1Conn) {
	p.mu.Lock()
	if old.state == h1Gone || old.state == h1Tunnel {
		p.mu.Unlock()
		return
	}
	old.old = true
	p.heirs.agedOut.Add(1)
	i := slices.Index(p.idle, old)
	if i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
		p.strike(old)
	}
	p.mu.Unlock()
	if i >= 0 {
		_ = old.cc.Close()
	}
}

// age is that of the oldest connection that takes requests, if there is one.
func (p *pool) age() (oldest time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		if !c.old && c.state != h1Tunnel {
			oldest, ok = max(oldest, time.Since(c.age.since)), true
		}
	}
	return oldest, ok
}
