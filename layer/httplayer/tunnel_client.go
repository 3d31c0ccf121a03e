package httplayer

import (
	"context"
	"net/http"
)

// tunnel sends CONNECT by a connection of its own, which is the body of a 2xx
// and ends with it. It does without net/http, which would take a length in such
// a response for that of a body, and has no body that can be written to.
func (p *pool) tunnel(ctx context.Context, req *http.Request) (*http.Response, error) {
	c, err := p.dialTunnel(ctx)
	if err != nil {
		return nil, err
	}
	closeBody(req) // none is sent
	end := &tunnelEnd{pool: p, conn: c, stop: context.AfterFunc(ctx, func() { _ = p.cut(c) })}
	rsp, err := askForTunnel(c.wire, p.endpoint.connectRequest(req), end)
	if err != nil {
		_ = end.Close()
		return nil, p.endpoint.failed(outgoing{}.blame(ctx, err))
	}
	rsp.Request, rsp.TLS = req, c.wire.tls
	return rsp, nil
}

// connectRequest is req as it is sent.
func (e *Endpoint) connectRequest(req *http.Request) *http.Request {
	out := fork(req)
	out.Body, out.ContentLength, out.TransferEncoding = nil, 0, nil
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // or net/http would say its own
	}
	if out.URL == nil || out.URL.Host == "" {
		out.URL = e.completed(urlOf(req))
	}
	return out
}

// dialTunnel makes a connection that is never idle. The attempt goes on when
// ctx ends, since others may wait for word of the address.
func (p *pool) dialTunnel(ctx context.Context) (*h1Conn, error) {
	e := p.endpoint
	if err := p.slot(); err != nil {
		return nil, err
	}
	mine, err := e.link.admit()
	if err != nil {
		p.unslot()
		return nil, e.unreachable(err)
	}
	out := make(chan dialled)
	go func() {
		c, err := p.makeTunnel()
		p.report(mine, err)
		select {
		case out <- dialled{c, err}:
		case <-ctx.Done():
			if err == nil {
				_ = p.cut(c)
			}
		}
	}()
	select {
	case d := <-out:
		if d.err != nil {
			return nil, p.noConnection(d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// makeTunnel makes the connection that a slot was taken for.
func (p *pool) makeTunnel() (*h1Conn, error) {
	w, err := p.endpoint.dialWire()
	if err != nil {
		p.unslot()
		return nil, err
	}
	c := &h1Conn{wire: w, state: h1Tunnel}
	p.mu.Lock()
	p.dialling--
	p.open[c] = struct{}{}
	p.mu.Unlock()
	return c, nil
}

// dialWire makes a connection for HTTP/1.1 that net/http knows nothing of.
func (e *Endpoint) dialWire() (*wire, error) {
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, err := e.opts.dial(ctx, "tcp", e.addr)
	if err == nil && e.opts.tls != nil {
		conn, err = e.secure(ctx, conn, http1)
	}
	if err != nil {
		return nil, &peerError{err}
	}
	return newTunnelWire(conn), nil
}

// tunnelEnd is what is to be done once when a tunnel, or the answer that there
// is none, was closed.
type tunnelEnd struct {
	pool *pool
	conn *h1Conn
	stop func() bool
}

func (e *tunnelEnd) Close() error {
	e.stop()
	return e.pool.cut(e.conn)
}

// cut ends a tunnel.
func (p *pool) cut(c *h1Conn) error {
	err := c.wire.Close()
	p.release(c)
	return err
}
