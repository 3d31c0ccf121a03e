package httplayer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gotower/gotower/layer"
)

// get returns the connection, made now if need be. The attempt goes on when
// ctx ends, for others and for later.
func (s *single) get(ctx context.Context) (*h2Conn, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	e := s.endpoint
	mine, err := e.link.admit()
	if err != nil {
		return nil, e.unreachable(err)
	}
	select {
	case r := <-s.fly(mine):
		if c, ok := r.Val.(*h2Conn); ok && r.Err == nil {
			return c, nil
		}
		if !e.opts.protocol.isFixed() && errors.Is(r.Err, errNotH2) {
			return nil, &layer.Error{Layer: "endpoint", Endpoint: e.addr, Err: r.Err}
		}
		return nil, e.unreachable(r.Err)
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// probe connects in the background.
func (s *single) probe(mine attempt) { s.fly(mine) }

// fly makes the connection, or joins who is at it. That may be a successor of
// which the link hears nothing.
func (s *single) fly(mine attempt) <-chan singleflight.Result {
	made := s.flight.DoChan("", func() (any, error) { return s.make(nil, mine) })
	if mine == 0 {
		return made
	}
	out := make(chan singleflight.Result, 1)
	go func() {
		r := <-made
		s.endpoint.link.forgo(mine)
		s.endpoint.wake.Wake()
		out <- r
	}()
	return out
}

// make makes the connection, unless somebody just did; it takes the place of
// old. While old serves, its failure is nobody's; else it is that of mine.
func (s *single) make(old *h2Conn, mine attempt) (any, error) {
	if c := s.current.Load(); c != nil && c != old {
		if c.serves() {
			return c, nil
		}
		s.retire(c)
	}
	e := s.endpoint
	c, err := s.connect(old)
	switch {
	case err == nil:
		e.onlyH1.Store(false)
		e.link.report(mine, nil)
	case old != nil && s.current.Load() == old:
		return nil, err
	case !e.opts.protocol.isFixed() && errors.Is(err, errNotH2):
		e.link.report(mine, nil) // somebody is there, for HTTP/1.1
	default:
		e.turn(http2)
		e.link.report(mine, err)
	}
	e.wake.Wake()
	return c, err
}

var (
	// errNotH2 is what is wrong with a server that answers, but not in HTTP/2.
	errNotH2 = errors.New("the server does not speak HTTP/2")

	// errNoSettings says nothing of what a server speaks: one that restarts ends
	// its connections so, and a load balancer that has no server.
	errNoSettings = errors.New("the connection ended before the server's SETTINGS")
)

// connect makes a connection and waits for the server's SETTINGS. Before they
// have come net/http would allow 100 streams, whatever the server will say. It
// takes the place of old, unless that is the better one.
func (s *single) connect(old *h2Conn) (*h2Conn, error) {
	e := s.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	cc, w, err := e.connect(ctx, s.transport, http2)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.frames.ready:
	case <-w.frames.ended:
		_ = cc.Close()
		if w.frames.foreign.Load() {
			return nil, &peerError{errNotH2}
		}
		return nil, &peerError{errNoSettings}
	case <-ctx.Done():
		_ = cc.Close()
		return nil, &peerError{fmt.Errorf("no SETTINGS from the server: %w", context.Cause(ctx))}
	}
	c := &h2Conn{owner: s, cc: cc, wire: w, age: newAge(e.opts.maxAge), silence: silence{made: time.Now()}}
	if old != nil && s.current.Load() == old && c.useless() {
		_ = cc.Close()
		return nil, &peerError{errUseless}
	}
	err = s.publish(c)
	if old != nil && err == nil {
		s.supersede(old)
	}
	return c, err
}

func (s *single) publish(c *h2Conn) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = c.cc.Close()
		return context.Cause(s.endpoint.life)
	}
	s.open[c] = struct{}{}
	s.mu.Unlock()
	s.current.Store(c)
	c.cc.SetStateHook(func(cc *http.ClientConn) { s.changed(c) })
	return nil
}
