package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/h1"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// pool holds an Endpoint's HTTP/1.1 connections.
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
	tls    *tls.ConnectionState
	age    age
	since  time.Time     // time at which the connection became idle
	once   bool          // the connection serves only one request
	unused bool          // no request has used the connection
	trace  message.Trace // hooks of the current request
}

// call sends req on an idle connection or on a new one. If an idle connection turns out to be closed,
// it tries the next one. If the request was sent on it, so that the server may have processed it, call
// tries only a new connection. A request that a new connection has not processed is rejected.
func (p *pool) call(ctx context.Context, req *http.Request, trace message.Trace) (*http.Response, error) {
	s := p.endpoint.newSending(ctx, req, trace)
	exclusive := needsOwnConn(req) // a connection that serves only this request
	for {
		var c *h1Conn
		if !exclusive && !s.sent {
			c = p.takeIdle()
		}
		fresh := c == nil
		if fresh {
			var err error
			if c, err = p.dial(ctx, s.trace); err != nil {
				return nil, s.reject(err)
			}
			c.once = exclusive
		}
		// The connection may still carry the previous request's hooks, which must go.
		if !s.trace.IsZero() || !c.trace.IsZero() {
			c.useTrace(s.trace)
		}
		c.unused = false
		rsp, err, again := s.exchange(c, c.tls)
		if err != nil && fresh {
			p.endpoint.onlyH1.Store(false) // another server may have the address now
		}
		// again: the server has not processed the request, and its body can be sent once more.
		if !again {
			return rsp, err
		}
		// A new connection has failed as well. More attempts would probably fail, too.
		if fresh {
			return nil, s.unprocessed()
		}
	}
}

// needsOwnConn reports whether req must use a connection that serves no other request, as
// in linkerd's proxy. It returns true for a received request of HTTP/1.0 or without a Host.
func needsOwnConn(req *http.Request) bool {
	return isHTTP10(req) || req.RequestURI != "" && (HTTP{}).Authority(req) == ""
}

// takeIdle returns the most recently used idle connection, or nil.
// Idle connections are in the order of their last use. Those at the front grow old and are closed.
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

// release gives c back after a request. It keeps c for the next one, unless reusable is false, c is too
// old or made for one request, the Endpoint's context has ended, or enough connections are idle
// already. Otherwise it closes c.
func (p *pool) release(c *h1Conn, reusable bool) {
	e := p.endpoint
	p.mu.Lock()
	maxIdle := e.opts.maxIdle // negative: no limit
	trace := c.trace
	if !reusable || c.once || e.life.Err() != nil || maxIdle >= 0 && len(p.idle) >= maxIdle || c.age.over() {
		p.mu.Unlock()
		p.forget()
		_ = c.Close()
		// A hook is the caller's code, so it runs without the mutex.
		trace.PutIdleConn(errNotKept)
		return
	}
	c.since = time.Now()
	p.idle = append(p.idle, c)
	p.reapAfter(e.opts.idleTimeout)
	p.mu.Unlock()
	trace.PutIdleConn(nil)
	e.wake.Wake()
}

var errNotKept = errors.New("httplayer: the connection is not kept")

// useTrace sets t, the hooks of the next request on c, and calls GotConn.
func (c *h1Conn) useTrace(t message.Trace) {
	idle := time.Duration(0)
	if !c.unused {
		idle = time.Since(c.since)
	}
	c.trace = t
	c.Trace(t)
	t.GotConn(c.NetConn(), !c.unused, idle)
}

// dial makes a connection for a request, and waits until it is made or has failed, or until ctx ends.
// If ctx ends first, the connection is still made, and kept for a later request, which then need not wait
// as long again.
func (p *pool) dial(ctx context.Context, trace message.Trace) (*h1Conn, error) {
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
	// On a new goroutine, so that the request can give up.
	go func() {
		defer close(made)
		c, err = p.connect(trace)
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

// probe makes a connection in the background, without a request, to find out whether the address can be
// reached. The connection is then idle.
func (p *pool) probe() {
	if !p.reserve() {
		return
	}
	go func() {
		c, err := p.connect(message.Trace{})
		if err == nil {
			p.keep(c) // before Ready admits a request, which would otherwise dial
		}
		// true: admit has allowed this attempt as the probe of an address that is down.
		p.endpoint.tried(http1, true, err) // link.admit has allowed it
	}()
}

// keep makes a new connection, which no request uses, an idle one.
func (p *pool) keep(c *h1Conn) {
	c.Rest()
	p.release(c, true) // reusable
}

var errNotH1 = errors.New("the server does not speak HTTP/1.1")

// connect makes a connection that the caller has already counted with reserve. If it fails, it
// calls forget.
func (p *pool) connect(trace message.Trace) (*h1Conn, error) {
	e := p.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, state, err := e.dial(trace.Context(ctx), http1.String())
	if err != nil {
		p.forget()
		return nil, err
	}
	return p.newConn(conn, state), nil
}

// newConn returns the pool's state for conn, a new connection. When a request on it and its response have ended, it
// goes back to p by release.
func (p *pool) newConn(conn net.Conn, state *tls.ConnectionState) *h1Conn {
	c := &h1Conn{tls: state, unused: true, age: newAge(p.endpoint.opts.maxAge)}
	c.ClientConn = h1.NewClientConn(conn, func(_ *h1.ClientConn, reusable bool) { p.release(c, reusable) })
	return c
}

// adopt makes conn an idle connection. It was made for HTTP/2, but the server has selected HTTP/1.1.
// adopt closes conn if there are too many connections.
func (p *pool) adopt(conn net.Conn, state *tls.ConnectionState) {
	if !p.reserve() {
		_ = conn.Close()
		return
	}
	p.keep(p.newConn(conn, state))
}

// closeIdle closes the connections that no request uses. Others stay open, and may become idle
// again.
func (p *pool) closeIdle() {
	defer p.endpoint.wake.Wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evict(len(p.idle))
}

// reserve counts a new connection before it is dialed, and reports whether it may be made. If the
// maximum is reached, it closes the connection that was idle for the longest time to make room. It
// returns false if none is idle.
func (p *pool) reserve() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.belowMax() {
		if len(p.idle) == 0 {
			return false
		}
		// The new connection takes the place of an idle one, which evict stops counting.
		p.evict(1)
	}
	p.conns++
	return true
}

// forget subtracts a connection that reserve has counted, because it was closed or could not be made.
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

// room reports whether a request would find a connection: an idle one or, if mayConnect is true, a new
// one within the maximum.
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

// evict closes the n connections that were idle for the longest time. The caller holds mu.
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

// reap closes the connections, at the front of p.idle, that were idle for the idle timeout.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaper = nil
	// The connection that was idle for the longest time is first, so the search ends at the first
	// recent one.
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
// when the Endpoint's context ends.
func (p *pool) shut() {
	p.closeIdle()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaper != nil {
		p.reaper.Stop()
	}
}
