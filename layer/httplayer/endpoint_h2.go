package httplayer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/h2"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// single is the HTTP/2 connection of an Endpoint: one at a time, beside those
// that are draining.
type single struct {
	endpoint *Endpoint
	cfg      h2.ClientConfig
	flight   singleflight.Group
	current  atomic.Pointer[h2Conn] // nil if there is none

	mu     sync.Mutex
	open   map[*h2Conn]struct{}
	closed bool
}

// h2Conn is one connection.
type h2Conn struct {
	*h2.ClientConn
	tls    *tls.ConnectionState
	age    age
	renews atomic.Bool // a replacement is being made
}

func (s *single) init(e *Endpoint) {
	s.endpoint, s.open = e, make(map[*h2Conn]struct{})
	s.cfg = h2.ClientConfig{
		Secure: e.opts.tls != nil, PingInterval: e.opts.pingInterval, PingTimeout: e.opts.pingTimeout,
		Changed: func(*h2.ClientConn) { e.wake.Wake() },
	}
}

// call sends a request by the connection, or by the next one.
func (s *single) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	e := s.endpoint
	for range 3 {
		c, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		if !c.Reserve() {
			if c.Usable() {
				return nil, e.full
			}
			s.retire(c)
			continue
		}
		if c.age.over() {
			s.renew(c)
		}
		out, body := e.outgoing(ctx, req)
		rsp, err := c.RoundTrip(out)
		switch {
		case err == nil:
			body.admit()
			rsp.Request, rsp.TLS = req, c.tls
			return rsp, nil
		case errors.Is(err, message.ErrNotSent) && ctx.Err() != nil:
			return nil, e.goneError(ctx)
		case errors.Is(err, message.ErrNotSent):
			s.retire(c)
			continue
		case errors.Is(err, message.ErrNotProcessed) && ctx.Err() == nil && body.withdraw():
			return nil, e.reject("not processed", &peerError{err})
		}
		body.fail()
		return nil, e.failed(blame(ctx, req, body, err))
	}
	return nil, e.reject("connections end before they can be used", nil)
}

// get returns the connection, and makes one if there is none.
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
	case r := <-s.connectOnce(mine):
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

// probe connects without a request.
func (s *single) probe(mine attempt) { s.connectOnce(mine) }

// connectOnce makes a connection, or waits for the one that is being made.
func (s *single) connectOnce(mine attempt) <-chan singleflight.Result {
	made := s.flight.DoChan("", func() (any, error) { return s.make(mine) })
	if mine == 0 {
		return made
	}
	out := make(chan singleflight.Result, 1)
	go func() {
		r := <-made
		s.endpoint.link.forgo(mine) // if another attempt was already being made
		s.endpoint.wake.Wake()
		out <- r
	}()
	return out
}

func (s *single) make(mine attempt) (*h2Conn, error) {
	if c := s.current.Load(); c != nil {
		if c.Usable() {
			return c, nil
		}
		s.retire(c)
	}
	e := s.endpoint
	c, err := s.connect()
	if err == nil {
		err = s.publish(c)
	}
	switch {
	case err == nil:
		e.onlyH1.Store(false)
		e.link.report(mine, nil)
	case !e.opts.protocol.isFixed() && errors.Is(err, errNotH2):
		e.link.report(mine, nil) // the server can be reached, for HTTP/1.1
	default:
		e.turn(http2)
		e.link.report(mine, err)
	}
	e.wake.Wake()
	return c, err
}

var (
	// errNotH2 reports a server that answers, but not in HTTP/2.
	errNotH2 = errors.New("the server does not speak HTTP/2")

	// errNoSettings leaves the protocol of the server unknown, because servers that
	// restart and load balancers without a server also end connections so.
	errNoSettings = errors.New("the connection ended before the server's SETTINGS")
)

// connect makes a connection and waits for the SETTINGS of the server.
func (s *single) connect() (*h2Conn, error) {
	e := s.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, state, err := e.dial(ctx, http2)
	if err != nil {
		return nil, &peerError{err}
	}
	c := &h2Conn{ClientConn: h2.NewClientConn(conn, &s.cfg), tls: state, age: newAge(e.opts.maxAge)}
	select {
	case <-c.Settled():
		select {
		case <-c.Done():
			if _, foreign := errors.AsType[*h2.ConnError](c.Err()); foreign {
				return nil, &peerError{errNotH2}
			}
			return nil, &peerError{errNoSettings}
		default:
			return c, nil
		}
	case <-ctx.Done():
		_ = c.Close()
		return nil, &peerError{fmt.Errorf("no SETTINGS from the server: %w", context.Cause(ctx))}
	}
}

// publish makes c the connection for new requests.
func (s *single) publish(c *h2Conn) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = c.Close()
		return context.Cause(s.endpoint.life)
	}
	s.open[c] = struct{}{}
	old := s.current.Swap(c)
	s.mu.Unlock()
	if old != nil {
		s.retire(old)
	}
	go func() {
		<-c.Done()
		s.retire(c)
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		s.endpoint.wake.Wake()
	}()
	return nil
}

// retire takes no more requests by c, which is closed after its last stream.
func (s *single) retire(c *h2Conn) {
	s.current.CompareAndSwap(c, nil)
	c.Drain()
}

// renew replaces a connection that is too old, in the background. If no other
// can be made, it stays in use for a while longer.
func (s *single) renew(c *h2Conn) {
	if !c.renews.CompareAndSwap(false, true) {
		return
	}
	go func() {
		next, err := s.connect()
		if err == nil {
			err = s.publish(next)
		}
		if err != nil {
			time.AfterFunc(s.endpoint.opts.backoff.Delay(0), func() { c.renews.Store(false) })
			return
		}
		if grace := s.endpoint.opts.grace; grace > 0 {
			timer := time.NewTimer(grace)
			defer timer.Stop()
			select {
			case <-timer.C:
				_ = c.Close()
			case <-c.Done():
			}
		}
	}()
}

// shut drains all connections.
func (s *single) shut() {
	s.mu.Lock()
	s.closed = true
	conns := make([]*h2Conn, 0, len(s.open))
	for c := range s.open {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		s.retire(c)
	}
}

// room reports whether a request would find a stream, or may connect.
func (s *single) room(mayConnect bool) bool {
	c := s.current.Load()
	if c == nil || !c.Usable() {
		return mayConnect
	}
	return c.Active() < c.Limit()
}

// serves reports whether there is a connection that accepts requests.
func (s *single) serves() bool {
	c := s.current.Load()
	return c != nil && c.Usable()
}

// usage is for Describe.
func (s *single) usage() (conns, idle, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		n := c.Active()
		if n == 0 {
			idle++
		}
		inFlight += n
	}
	return len(s.open), idle, inFlight
}

// age is the age limit of a connection. The zero age has none.
type age struct{ end time.Time }

// ageJitter is that of gRPC's MAX_CONNECTION_AGE (gRFC A9).
const ageJitter = 0.1

// newAge returns the age of a new connection whose limit is about d.
func newAge(d time.Duration) age {
	if d <= 0 {
		return age{}
	}
	d = min(d, math.MaxInt64/2) // leaves room for jitter
	off := (2*rand.Float64() - 1) * ageJitter * float64(d)
	return age{end: time.Now().Add(d + time.Duration(off))}
}

// over reports whether the connection is too old. Without a limit it does not
// read the clock.
func (a *age) over() bool { return !a.end.IsZero() && !time.Now().Before(a.end) }
