package httplayer

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

// call sends a request by a connection of the pool.
func (p *pool) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodConnect {
		return p.tunnel(ctx, req)
	}
	e, form := p.endpoint, formOf(req)
	for {
		c := p.take(form)
		fresh := c == nil
		if fresh {
			var err error
			if c, err = p.dial(ctx, form); err != nil {
				return nil, err
			}
			if err = c.cc.Reserve(); err != nil {
				p.dismiss(c, fresh)
				return nil, e.refuse("the new connection was lost", &peerError{err})
			}
		}
		out := e.outgoing(ctx, req)
		out.inForm(form, req, c.wire)
		before := c.wire.sent.Load()
		rsp, err := p.roundTrip(c, out)
		if err == nil {
			out.admit()
			rsp.Request, rsp.TLS = req, c.wire.tls
			p.deliver(ctx, c, rsp)
			return rsp, nil
		}
		// net/http has stopped writing before it returns an error, so what was
		// counted is final. It closed the connection, too, unless it did not
		// like the request.
		p.dismiss(c, fresh)
		if ctx.Err() != nil || !c.wire.lost.Load() || c.wire.sent.Load() != before || !out.withdraw() {
			out.fail()
			return nil, e.failed(out.blame(ctx, err))
		}
		if fresh {
			return nil, e.refuse("the new connection was lost", &peerError{err})
		}
		// It died while it was idle. The next one, or else a new one, will do.
	}
}

// roundTrip is that of c. A connection that may be upgraded stays counted while it
// becomes one that was: for net/http it ends before RoundTrip returns.
func (p *pool) roundTrip(c *h1Conn, out outgoing) (*http.Response, error) {
	if len(out.Header["Upgrade"]) == 0 {
		return c.roundTrip(out)
	}
	upgraded := false
	c.upgrading.Store(true)
	defer func() {
		if upgraded {
			return
		}
		c.upgrading.Store(false)
		if c.cc.Err() != nil {
			p.forget(c)
		}
	}()
	rsp, err := c.roundTrip(out)
	if err == nil {
		_, upgraded = rsp.Body.(io.ReadWriteCloser)
	}
	return rsp, err
}

// dismiss ends a connection that failed for a request. Where one that was just
// made ended without a word, there may be another server than before.
func (p *pool) dismiss(c *h1Conn, fresh bool) {
	p.end(c)
	if fresh && c.wire.lost.Load() && !c.wire.heard.Load() {
		p.endpoint.doubt()
	}
}

// deliver arranges for the connection to come back to the pool when rsp ends.
// One that was upgraded nobody ends when ctx does: net/http has let go of it,
// and whoever has the body may not close it.
func (p *pool) deliver(ctx context.Context, c *h1Conn, rsp *http.Response) {
	if both, ok := rsp.Body.(io.ReadWriteCloser); ok {
		p.keep(c)
		stop := context.AfterFunc(ctx, func() {
			_ = both.Close()
			p.release(c)
		})
		rsp.Body = &h1Upgraded{ReadWriteCloser: both, pool: p, conn: c, stop: stop}
		return
	}
	if rsp.Body == http.NoBody {
		p.end(c)
		return
	}
	body := &h1Body{ReadCloser: rsp.Body, pool: p}
	body.conn.Store(c)
	rsp.Body = body
}

// h1Body gives its connection back.
type h1Body struct {
	io.ReadCloser
	pool *pool
	conn atomic.Pointer[h1Conn] // nil once it was given back
}

func (b *h1Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.release()
	}
	return n, err
}

func (b *h1Body) Close() error {
	err := b.ReadCloser.Close()
	b.release()
	return err
}

func (b *h1Body) release() {
	if c := b.conn.Swap(nil); c != nil {
		b.pool.end(c)
	}
}

// keep counts a connection that was upgraded for as long as its body is open:
// as far as net/http is concerned it has ended already.
func (p *pool) keep(c *h1Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state == h1Gone {
		p.conns++
	}
	c.state = h1Tunnel
}

// h1Upgraded is the body of an upgraded connection, which ends with it.
type h1Upgraded struct {
	io.ReadWriteCloser
	pool *pool
	conn *h1Conn
	stop func() bool
}

// CloseWrite ends what goes to the endpoint.
func (u *h1Upgraded) CloseWrite() error {
	if half, ok := u.ReadWriteCloser.(halfCloser); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

func (u *h1Upgraded) Close() error {
	u.stop()
	err := u.ReadWriteCloser.Close()
	u.pool.release(u.conn)
	return err
}

// release strikes off a connection that was upgraded.
func (p *pool) release(c *h1Conn) {
	p.mu.Lock()
	if c.state == h1Tunnel {
		p.strike(c)
	}
	p.mu.Unlock()
	p.endpoint.wake.Wake()
}
