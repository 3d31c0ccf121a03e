package httplayer

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pool is the HTTP/1.1 connections of an Endpoint.
type pool struct {
	endpoint  *Endpoint
	transport *http.Transport

	heirs succession

	mu       sync.Mutex
	open     map[*h1Conn]struct{}
	idle     []*h1Conn // the one that was used last is the last
	conns    int       // idle, in use and being dialled
	dialling int
	reaper   *time.Timer
	reaping  bool // the reaper is set
	closed   bool
}

// h1Conn is one connection. Its state belongs to the pool.
type h1Conn struct {
	cc    *http.ClientConn
	wire  *wire
	age   age
	state h1State
	since time.Time // idle
	form  form      // of the requests that it takes
	old   bool      // another has taken its place: not to be used again

	upgrading atomic.Bool // net/http's word that it ended means nothing
}

type h1State int

const (
	h1Busy h1State = iota
	h1Idle
	h1Tunnel // upgraded: net/http has let go of it
	h1Gone
)

// take returns an idle connection, reserved for one request in that form, or
// nil. Nobody else's connection is one for a request that needs its own.
func (p *pool) take(form form) *h1Conn {
	if form == dedicated {
		return nil
	}
	for {
		c := p.takeIdle(form)
		if c == nil {
			return nil
		}
		if c.cc.Reserve() == nil {
			if c.age.over() {
				p.renew(c)
			}
			return c
		}
		p.forget(c)
	}
}

// takeIdle takes the one that was used last. It is the last of all, but where
// both forms are in use.
func (p *pool) takeIdle(form form) *h1Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.usableLocked() {
		return nil
	}
	for i, c := range slices.Backward(p.idle) {
		if c.form == form {
			p.idle = slices.Delete(p.idle, i, i+1)
			c.state = h1Busy
			return c
		}
	}
	return nil
}

// put makes a connection idle, and reports whether it could: it is free, and
// can be used again.
func (p *pool) put(c *h1Conn) bool {
	if c.cc.Err() != nil || c.cc.Available() == 0 || !c.wire.rest.settle() {
		return false
	}
	p.mu.Lock()
	if p.closed || c.old || c.form == dedicated || c.state == h1Busy && p.laidOutLocked() {
		p.mu.Unlock()
		return false
	}
	if c.state == h1Busy {
		p.idleLocked(c)
	}
	p.mu.Unlock()
	p.endpoint.wake.Wake()
	return true
}

// laidOutLocked reports whether there are as many idle connections as there may
// be.
func (p *pool) laidOutLocked() bool {
	most := p.endpoint.opts.maxIdle
	return most >= 0 && len(p.idle) >= most
}

func (p *pool) idleLocked(c *h1Conn) {
	c.state, c.since = h1Idle, time.Now()
	p.idle = append(p.idle, c)
	p.reapLater(p.endpoint.opts.idleTimeout)
}

// end is for a connection whose response has ended. net/http frees it before
// its reader sees the end; one that is not free by then never will be.
func (p *pool) end(c *h1Conn) {
	if !p.put(c) {
		_ = c.cc.Close()
		p.forget(c)
	}
}

// forget strikes off a connection that is no more.
func (p *pool) forget(c *h1Conn) {
	p.mu.Lock()
	if c.state == h1Gone || c.state == h1Tunnel {
		p.mu.Unlock()
		return
	}
	if i := slices.Index(p.idle, c); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	p.strike(c)
	p.mu.Unlock()
	p.endpoint.wake.Wake()
}

func (p *pool) strike(c *h1Conn) {
	c.state = h1Gone
	p.conns--
	delete(p.open, c)
}

// slot makes room for one connection more, if there may be one: in place of an
// idle one, if need be, which is none of use to whoever asks.
func (p *pool) slot() error {
	p.mu.Lock()
	var spare *h1Conn
	if !p.closed && !p.belowLocked() && len(p.idle) > 0 && p.usableLocked() {
		spare = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
		p.strike(spare)
	}
	err := p.slotLocked()
	p.mu.Unlock()
	if spare != nil {
		_ = spare.cc.Close()
	}
	return err
}

func (p *pool) slotLocked() error {
	switch {
	case p.closed:
		return p.endpoint.closedError()
	case !p.belowLocked():
		return p.endpoint.full
	}
	p.conns++
	p.dialling++
	return nil
}

// unslot is for a connection that was not made.
func (p *pool) unslot() {
	p.mu.Lock()
	p.conns--
	p.dialling--
	p.mu.Unlock()
	p.endpoint.wake.Wake()
}

func (p *pool) belowLocked() bool {
	return p.endpoint.opts.maxConns <= 0 || p.conns < p.endpoint.opts.maxConns
}

// usableLocked reports whether an idle connection may be used. While an old one
// is in use its successor may be one above the bound.
func (p *pool) usableLocked() bool {
	return p.endpoint.opts.maxConns <= 0 || p.conns-len(p.idle) < p.endpoint.opts.maxConns
}

// hasSlot reports whether slot would make room.
func (p *pool) hasSlot() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.belowLocked() || len(p.idle) > 0 && p.usableLocked()
}

func (p *pool) room(mayConnect bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) > 0 && p.usableLocked() || mayConnect && p.belowLocked()
}

// usage is for Describe.
func (p *pool) usage() (conns, idle, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns - p.dialling, len(p.idle), p.conns - p.dialling - len(p.idle)
}
