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

	mu      sync.Mutex
	idle    []*h1Conn   // idle connections; the most recently used one is last
	conns   int         // number of idle connections, of those in use and of those being dialed
	dialing int         // number of connections being dialed
	reaper  *time.Timer // calls reap; nil if it is not running
	closed  bool
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
	e := p.endpoint
	for {
		c, fresh, err := p.get(ctx, needsOwnConn(req))
		if err != nil {
			return nil, err
		}
		out, body := outgoing(ctx, req, e.addr)
		if _, ok := req.Header[origProtoField]; ok { // it is of HTTP/2 connections
			out = without(out, origProtoField)
		}
		rsp, err := c.RoundTrip(out)
		switch {
		case err == nil:
			body.admit()
			rsp.Request, rsp.TLS = req, c.tls
			return rsp, nil
		case !errors.Is(err, message.ErrNotSent):
			if fresh {
				e.onlyH1.Store(false) // another server may have the address now
			}
			return nil, e.failed(body.fail(ctx, req, err))
		case ctx.Err() != nil:
			return nil, e.goneError(ctx)
		case fresh:
			e.onlyH1.Store(false)
			return nil, e.reject("the new connection was lost", &peerError{err})
		}
		// The server closed the connection while it was idle.
	}
}

// get returns a connection for one request: an idle connection that is not too old, or a new one.
// If the argument own is true, get makes a new connection, which serves only this request. The
// result fresh reports whether the connection is new.
func (p *pool) get(ctx context.Context, own bool) (c *h1Conn, fresh bool, err error) {
	for !own {
		if c = p.takeIdle(); c == nil {
			break
		}
		if !c.age.over() {
			return c, false, nil
		}
		p.release(c, false)
	}
	if c, err = p.dial(ctx); err == nil {
		c.once = own
	}
	return c, true, err
}

// needsOwnConn reports whether req must use a connection that serves no other request, as
// in linkerd's proxy. It returns true for a received request of HTTP/1.0 or without a Host.
func needsOwnConn(req *http.Request) bool {
	return isHTTP10(req) || req.RequestURI != "" && (Accessor{}).Authority(req) == ""
}

func (p *pool) takeIdle() *h1Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 || p.closed {
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	return c
}

// release returns c to the pool after a request. It closes c instead if reusable is false,
// or if c is too old or serves only one request. It also closes c if the pool is closed or
// has the maximum number of idle connections.
func (p *pool) release(c *h1Conn, reusable bool) {
	p.mu.Lock()
	most := p.endpoint.opts.maxIdle
	if !reusable || c.once || p.closed || most >= 0 && len(p.idle) >= most || c.age.over() {
		p.conns--
		p.mu.Unlock()
		_ = c.Close()
	} else {
		c.since = time.Now()
		p.idle = append(p.idle, c)
		p.reapAfter(p.endpoint.opts.idleTimeout)
		p.mu.Unlock()
	}
	p.endpoint.wake.Wake()
}

// rest adds c, a connection that was not used, to the idle connections.
func (p *pool) rest(c *h1Conn) {
	c.Rest()
	p.release(c, true)
}

// dial makes a connection on a new goroutine. It waits until the connection is made or has failed,
// or until ctx ends. After ctx has ended, the goroutine continues and adds the connection to the
// idle connections for other requests.
func (p *pool) dial(ctx context.Context) (*h1Conn, error) {
	e := p.endpoint
	if err := p.reserve(); err != nil {
		return nil, err
	}
	mine, err := e.link.admit()
	if err != nil {
		p.unreserve()
		return nil, e.unreachable(err)
	}
	type result struct {
		conn *h1Conn
		err  error
	}
	out := make(chan result)
	go func() {
		c, err := p.connect()
		p.endpoint.tried(http1, mine, err)
		select {
		case out <- result{c, err}:
		case <-ctx.Done():
			if err == nil {
				p.rest(c)
			}
		}
	}()
	select {
	case r := <-out:
		if r.err != nil {
			return nil, e.connectError(r.err)
		}
		return r.conn, nil
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// probe makes a connection in the background, without a request, and adds it to the idle
// connections. The argument mine is the permission to connect that link.claim returned. The link,
// which records whether the address can be reached, gets the result.
func (p *pool) probe(mine attempt) {
	if p.reserve() != nil {
		return
	}
	go func() {
		c, err := p.connect()
		if err == nil {
			p.rest(c)
		}
		p.endpoint.tried(http1, mine, err)
	}()
}

var errNotH1 = errors.New("the server does not speak HTTP/1.1")

// connect dials a connection and returns it. The caller must have called reserve before,
// which counts the connection. If dialing fails, connect subtracts the connection from the
// count.
func (p *pool) connect() (*h1Conn, error) {
	e := p.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, state, err := e.dial(ctx, http1)
	p.mu.Lock()
	p.dialing--
	if err != nil {
		p.conns--
	}
	p.mu.Unlock()
	if err != nil {
		return nil, &peerError{err}
	}
	c := &h1Conn{tls: state, age: newAge(e.opts.maxAge)}
	c.ClientConn = h1.NewClientConn(conn, func(_ *h1.ClientConn, reusable bool) { p.release(c, reusable) })
	return c, nil
}

// reserve counts a new connection before it is dialed. If the maximum is reached, it closes
// the connection that has been idle for the longest time. It returns an error if the pool
// is closed, or if the maximum is reached and no connection is idle.
func (p *pool) reserve() error {
	p.mu.Lock()
	if !p.closed && !p.belowMaxLocked() && len(p.idle) > 0 {
		oldest := p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
		p.conns--
		defer oldest.Close()
	}
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return p.endpoint.closedError()
	case !p.belowMaxLocked():
		return p.endpoint.full
	}
	p.conns++
	p.dialing++
	return nil
}

// unreserve subtracts a connection that reserve has counted and that will not be dialed.
func (p *pool) unreserve() {
	p.mu.Lock()
	p.conns--
	p.dialing--
	p.mu.Unlock()
	p.endpoint.wake.Wake()
}

func (p *pool) belowMaxLocked() bool {
	return p.endpoint.opts.maxConns <= 0 || p.conns < p.endpoint.opts.maxConns
}

// room reports whether a request could use an idle connection. If mayConnect is true, it
// also returns true if the pool has fewer connections than the maximum, so that a connection can be
// dialed.
func (p *pool) room(mayConnect bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) > 0 || mayConnect && p.belowMaxLocked()
}

// usage returns the number of open HTTP/1.1 connections, the number of idle ones, and the
// number of requests in flight. Describe shows these numbers.
func (p *pool) usage() (conns, idle, inFlight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns - p.dialing, len(p.idle), p.conns - p.dialing - len(p.idle)
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
	now, limit := time.Now(), p.endpoint.opts.idleTimeout
	p.mu.Lock()
	p.reaper = nil
	n := 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) >= limit {
		n++
	}
	old := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.conns -= n
	if len(p.idle) > 0 && !p.closed {
		p.reapAfter(limit - now.Sub(p.idle[0].since))
	}
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
	p.endpoint.wake.Wake()
}

// shut closes the idle connections. The other connections close when their requests end.
func (p *pool) shut() {
	p.mu.Lock()
	p.closed = true
	old := p.idle
	p.idle = nil
	p.conns -= len(old)
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}
