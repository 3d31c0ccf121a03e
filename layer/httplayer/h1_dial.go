package httplayer

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
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
	mine, err := p.endpoint.link.admit()
	if err != nil {
		p.unslot()
		return nil, p.endpoint.unreachable(err)
	}
	out := make(chan dialled)
	go func() {
		c, err := p.make(form)
		p.report(mine, err)
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
			return nil, p.noConnection(d.err)
		}
		return d.conn, nil
	case <-ctx.Done():
		return nil, p.endpoint.goneError(ctx)
	}
}

// probe connects in the background. The connection is there to be used before
// anybody hears that the address can be reached.
func (p *pool) probe(mine attempt) {
	if p.slot() != nil {
		p.endpoint.link.forgo(mine)
		p.endpoint.wake.Wake() // for who takes it up, if this one waits no more
		return
	}
	go func() {
		c, err := p.make(originForm)
		if err == nil {
			p.end(c)
		}
		p.report(mine, err)
	}()
}

// errNotH1 is what is wrong with a server that answers, but not in HTTP/1.1.
var errNotH1 = errors.New("the server does not speak HTTP/1.1")

func (p *pool) report(mine attempt, err error) {
	e := p.endpoint
	if errors.Is(err, errNotH1) {
		e.asked[0].Store(false) // Ready would wait for it
		err = nil               // somebody is there, for HTTP/2
	}
	e.link.report(mine, err)
	e.wake.Wake()
}

// noConnection is the error of a request for which none could be made. What can
// never be made is no refusal.
func (p *pool) noConnection(err error) error {
	e := p.endpoint
	if errors.Is(err, errNotH1) {
		return &layer.Error{Layer: "endpoint", Endpoint: e.addr, Err: err}
	}
	return e.unreachable(err)
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
		if !errors.Is(err, errNotH1) {
			e.turn(http1)
		}
		return nil, err
	}
	return &h1Conn{cc: cc, wire: w, age: newAge(e.opts.maxAge), form: form}, nil
}

// watch has a connection struck off when it is no more, by whoever would upgrade it
// if somebody is at that.
func (p *pool) watch(c *h1Conn) {
	c.cc.SetStateHook(func(cc *http.ClientConn) {
		if cc.Err() != nil && !c.upgrading.Load() {
			p.forget(c)
		}
	})
}
