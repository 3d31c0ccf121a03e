package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// pool has the HTTP/1.1 connections of an Endpoint.
type pool struct {
	endpoint *Endpoint

	mu     sync.Mutex
	idle   []*h1Conn   // idle connections; the most recently used one is last
	conns  int         // number of idle connections, of those in use and of those being dialed
	reaper *time.Timer // calls reap; nil if it is not running
}

// h1Conn is an HTTP/1.1 connection of an Endpoint. It is idle or used by one request.
type h1Conn struct {
	*h1.ClientConn
	tls   *tls.ConnectionState
	age   age
	since time.Time // time at which the connection became idle
	once  bool      // the connection serves only one request
}

// call sends req on an idle connection or on a new one. It tries another connection if the
// server has closed the idle one before the request was sent.
func (p *pool) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	own := needsOwnConn(req)
	for {
		var c *h1Conn
		if !own {
			c = p.takeIdle()
		}
		fresh := c == nil
		if fresh {
			var err error
			if c, err = p.dial(ctx); err != nil {
				return nil, err
			}
			c.once = own
		}
		rsp, err := p.endpoint.exchange(ctx, req, c, c.tls)
		if err != nil && fresh {
			p.endpoint.onlyH1.Store(false) // another server may have the address now
		}
		if fresh || !errors.Is(err, message.ErrNotSent) {
			return rsp, err
		}
		// The server closed the connection while it was idle.
	}
}

// needsOwnConn reports whether req must use a connection that serves no other request, as
// in linkerd's proxy. It returns true for a received request of HTTP/1.0 or without a Host.
func needsOwnConn(req *http.Request) bool {
	return isHTTP10(req) || req.RequestURI != "" && (Accessor{}).Authority(req) == ""
}

// takeIdle returns the most recently used idle connection, or nil.
func (p *pool) takeIdle() *h1Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle) - 1
	if n < 0 {
		return nil
	}
	c := p.idle[n]
	p.idle = slices.Delete(p.idle, n, n+1)
	return c
}

// release returns c to the pool after a request. It closes c instead if reusable is false,
// or if c is too old or serves only one request. It also closes c if the context of the Endpoint
// has ended or the pool has the maximum number of idle connections.
func (p *pool) release(c *h1Conn, reusable bool) {
	e := p.endpoint
	p.mu.Lock()
	most := e.opts.maxIdle
	if !reusable || c.once || e.life.Err() != nil || most >= 0 && len(p.idle) >= most || c.age.over() {
		p.mu.Unlock()
		p.forget()
		_ = c.Close()
		return
	}
	c.since = time.Now()
	p.idle = append(p.idle, c)
	p.reapAfter(e.opts.idleTimeout)
	p.mu.Unlock()
	e.wake.Wake()
}

// dial makes a connection on a new goroutine. It waits until the connection is made or has failed,
// or until ctx ends. A connection that is made after ctx has ended becomes idle.
func (p *pool) dial(ctx context.Context) (*h1Conn, error) {
	e := p.endpoint
	if !p.reserve() {
		return nil, e.full
	}
	allowed, _, err := e.link.admit()
	if err != nil {
		p.forget()
		return nil, e.unreachable(err)
	}
	var c *h1Conn
	made := make(chan struct{})
	go func() {
		defer close(made)
		c, err = p.connect()
		e.tried(http1, allowed, err)
	}()
	select {
	case <-made:
		if err != nil {
			return nil, e.unreachable(err)
		}
		return c, nil
	case <-ctx.Done():
		go func() {
			if <-made; err == nil {
				p.keep(c)
			}
		}()
		return nil, e.goneError(ctx)
	}
}

// probe makes a connection in the background, without a request, and adds it to the idle
// connections.
func (p *pool) probe() {
	if !p.reserve() {
		return
	}
	go func() {
		c, err := p.connect()
		if err == nil {
			p.keep(c) // before Ready admits a request, which would otherwise dial
		}
		p.endpoint.tried(http1, true, err)
	}()
}

// keep adds a connection that no request uses to the idle connections.
func (p *pool) keep(c *h1Conn) {
	c.Rest()
	p.release(c, true)
}

var errNotH1 = errors.New("the server does not speak HTTP/1.1")

// connect makes a connection, which the caller has counted by reserve. If it fails, it calls
// forget.
func (p *pool) connect() (*h1Conn, error) {
	e := p.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, state, err := e.dial(ctx, http1)
	if err != nil {
		p.forget()
		return nil, err
	}
	c := &h1Conn{tls: state, age: newAge(e.opts.maxAge)}
	c.ClientConn = h1.NewClientConn(conn, func(_ *h1.ClientConn, reusable bool) { p.release(c, reusable) })
	return c, nil
}

// reserve counts a new connection before it is dialed. If the maximum is reached, it closes
// the connection that has been idle for the longest time. It returns false if the maximum is
// reached and no connection is idle.
func (p *pool) reserve() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.belowMax() {
		if len(p.idle) == 0 {
			return false
		}
		p.evict(1)
	}
	p.conns++
	return true
}

// forget subtracts a connection that has ended or was not made.
func (p *pool) forget() {
	p.mu.Lock()
	p.conns--
	p.mu.Unlock()
	p.endpoint.wake.Wake()
}

// belowMax reports whether another connection may be made. The caller holds mu.
func (p *pool) belowMax() bool {
	return p.endpoint.opts.maxConns <= 0 || p.conns < p.endpoint.opts.maxConns
}

// room reports whether a request could use an idle connection. If mayConnect is true, it
// also returns true if the pool has fewer connections than the maximum, so that a connection can be
// dialed.
func (p *pool) room(mayConnect bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) > 0 || mayConnect && p.belowMax()
}

// usage returns the number of HTTP/1.1 connections, including those being dialed, the number of
// idle ones, and the number of requests in flight. Describe shows these numbers.
func (p *pool) usage() (conns, idle, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns, len(p.idle), p.conns - len(p.idle)
}

// evict closes the n connections that have been idle for the longest time. The caller holds mu.
func (p *pool) evict(n int) {
	for _, c := range p.idle[:n] {
		go c.Close() // with TLS it may block
	}
	p.idle = slices.Delete(p.idle, 0, n)
	p.conns -= n
}

// reapAfter starts the timer that calls reap after d, unless it is running. The caller holds mu.
func (p *pool) reapAfter(d time.Duration) {
	if p.reaper == nil {
		p.reaper = time.AfterFunc(d, p.reap)
	}
}

// reap closes the connections that have been idle for the idle timeout. They are the first
// ones in p.idle.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaper = nil
	for n, c := range p.idle {
		if left := p.endpoint.opts.idleTimeout - time.Since(c.since); left > 0 {
			p.evict(n)
			p.reapAfter(left)
			return
		}
	}
	p.evict(len(p.idle))
}

// shut closes the idle connections. The other connections close when their requests end. It is called
// when the context of the Endpoint ends.
func (p *pool) shut() {
	defer p.endpoint.wake.Wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evict(len(p.idle))
	if p.reaper != nil {
		p.reaper.Stop()
	}
}
