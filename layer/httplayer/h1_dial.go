package httplayer

import (
	"context"
	"net/http"
)

// dialled is a connection that was just made, or the error.
type dialled struct {
	conn *h1Conn
	err  error
}

// dial connects for a request. The attempt goes on when ctx ends; what comes
// of it is kept for others.
func (p *pool) dial(ctx context.Context, form form) (*h1Conn, error) {
	if err := p.slot(); err != nil {
		return nil, err
	}
	if err := p.endpoint.link.admit(); err != nil {
		p.unslot()
		return nil, p.endpoint.unreachable(err)
	}
	out := make(chan dialled)
	go func() {
		c, err := p.make(form)
		p.report(err)
		select {
		case out <- dialled{c, err}:
		case <-ctx.Done():
			if err == nil {
				p.end(c)
			}
		}
	}()
	select {
	case d := <-out:
		if d.err != nil {
			return nil, p.endpoint.unreachable(d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		return nil, p.endpoint.goneError(ctx)
	}
}

// probe connects in the background. The connection is there to be used before
// anybody hears that the address can be reached.
func (p *pool) probe() {
	if p.slot() != nil {
		return
	}
	go func() {
		c, err := p.make(originForm)
		if err == nil {
			p.end(c)
		}
		p.report(err)
	}()
}

func (p *pool) report(err error) {
	p.endpoint.link.report(err)
	p.endpoint.wake.Wake()
}

// make makes the connection that a slot was taken for.
func (p *pool) make(form form) (*h1Conn, error) {
	c, err := p.connect(form)
	if err != nil {
		p.unslot()
		return nil, err
	}
	p.mu.Lock()
	p.dialling--
	p.open[c] = struct{}{}
	p.mu.Unlock()
	p.watch(c)
	return c, nil
}

// connect makes a connection that is not counted yet.
func (p *pool) connect(form form) (*h1Conn, error) {
	e := p.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	cc, w, err := e.connect(ctx, p.transport, http1)
	if err != nil {
		e.doubt()
		e.turn(http1)
		return nil, err
	}
	return &h1Conn{cc: cc, wire: w, age: newAge(e.opts.maxAge), form: form}, nil
}

// watch has a connection struck off when it is no more.
func (p *pool) watch(c *h1Conn) {
	c.cc.SetStateHook(func(cc *http.ClientConn) {
		if cc.Err() != nil {
			p.forget(c)
		}
	})
}
