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

// single has the HTTP/2 connections of an Endpoint. The one in the field current accepts
// new requests. The others are draining.
type single struct {
	endpoint *Endpoint
	cfg      h2.ClientConfig
	flight   singleflight.Group
	current  atomic.Pointer[h2Conn] // connection for new requests; may be nil

	mu   sync.Mutex
	open map[*h2Conn]struct{} // connections that have not ended
}

// h2Conn is an HTTP/2 connection of an Endpoint.
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

// call sends req on the current connection. If the connection ends before the request is
// sent, it tries again, up to three times in total.
func (s *single) call(ctx context.Context, req *http.Request) (*http.Response, error) {
	e := s.endpoint
	for range 3 {
		c, err := s.get(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case c.Reserve():
			if c.age.over() {
				s.renew(c)
			}
			rsp, err := e.exchange(ctx, req, c, c.tls)
			if !errors.Is(err, message.ErrNotSent) {
				return rsp, err
			}
		case c.Usable():
			return nil, e.full
		}
		s.retire(c)
	}
	return nil, e.fault(layer.ErrNotReady, "connections end before they can be used", nil)
}

// get returns the current connection. If none exists yet, it makes one and waits for it.
func (s *single) get(ctx context.Context) (*h2Conn, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	e := s.endpoint
	allowed, _, err := e.link.admit()
	if err != nil {
		return nil, e.unreachable(err)
	}
	select {
	case r := <-s.connectOnce(allowed):
		if r.Err != nil {
			return nil, e.unreachable(r.Err)
		}
		return r.Val.(*h2Conn), nil //nolint:errcheck,forcetypeassert // connectOnce sends nothing else
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// connectOnce makes a connection on a new goroutine and sends it to the returned channel. If
// another call is already making a connection, the channel receives that connection. The argument
// allowed is the result of admit.
func (s *single) connectOnce(allowed bool) <-chan singleflight.Result {
	return s.flight.DoChan("", func() (any, error) {
		if c := s.current.Load(); c != nil && c.Usable() {
			return c, nil
		}
		c, err := s.connect()
		s.endpoint.tried(http2, allowed, err)
		return c, err
	})
}

// errNotH2 reports that the server answered, but not in HTTP/2. A connection that ends without an
// answer does not mean this, because restarting servers and load balancers without a server also
// end connections.
var errNotH2 = errors.New("the server does not speak HTTP/2")

// connect makes a connection, waits for the SETTINGS of the server, and makes the connection
// the current one.
func (s *single) connect() (*h2Conn, error) {
	e := s.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	conn, state, err := e.dial(ctx, http2)
	if err != nil {
		return nil, err
	}
	c := &h2Conn{ClientConn: h2.NewClientConn(conn, &s.cfg), tls: state, age: newAge(e.opts.maxAge)}
	select {
	case <-c.Settled():
		s.publish(c)
		return c, nil
	case <-ctx.Done():
		_ = c.Close()
		return nil, fmt.Errorf("no SETTINGS from the server: %w", context.Cause(ctx))
	case <-c.Done():
		err := c.Err()
		if invalid, ok := errors.AsType[*h2.ConnError](err); ok && !invalid.Remote {
			return nil, errNotH2
		}
		return nil, fmt.Errorf("the new connection ended: %w", err)
	}
}

// publish makes c the current connection and drains the previous one. c is drained when the context
// of the Endpoint ends.
func (s *single) publish(c *h2Conn) {
	s.mu.Lock()
	s.open[c] = struct{}{}
	old := s.current.Swap(c)
	s.mu.Unlock()
	if old != nil {
		s.retire(old)
	}
	go func() {
		select {
		case <-c.Done():
		case <-s.endpoint.life.Done():
		}
		s.retire(c)
		<-c.Done()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		s.endpoint.wake.Wake()
	}()
}

// retire removes c from s.current, so that no new requests use it, and drains it. c closes
// after its last stream.
func (s *single) retire(c *h2Conn) {
	s.current.CompareAndSwap(c, nil)
	c.Drain()
}

// renew makes a connection in the background, which then replaces the connection c, because
// c is too old. If the new connection cannot be made, c stays in use. Calls of renew for c
// then do nothing until a backoff has passed.
func (s *single) renew(c *h2Conn) {
	if !c.renews.CompareAndSwap(false, true) {
		return
	}
	go func() {
		if _, err := s.connect(); err != nil {
			time.AfterFunc(s.endpoint.opts.backoff.Delay(0), func() { c.renews.Store(false) })
		}
	}()
}

// room reports whether the server allows one more stream on the current connection. Without a
// usable connection, it returns the argument mayConnect, which specifies whether a new connection
// may be made.
func (s *single) room(mayConnect bool) bool {
	c := s.current.Load()
	if c == nil || !c.Usable() {
		return mayConnect
	}
	return c.Active() < c.Limit()
}

// serves reports whether the current connection accepts new requests.
func (s *single) serves() bool {
	c := s.current.Load()
	return c != nil && c.Usable()
}

// usage returns the number of HTTP/2 connections, the number of those without requests, and
// the number of requests in flight. Describe shows these numbers.
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

// age is the time limit of a connection. After the time in the field end, the connection is too old
// and is replaced. The zero value has no limit.
type age struct{ end time.Time }

// ageJitter is the fraction by which the age limit of a connection varies at random, as for
// gRPC's MAX_CONNECTION_AGE (gRFC A9).
const ageJitter = 0.1

// newAge returns the age of a new connection that becomes too old after about the duration
// d. It changes d at random by up to ageJitter. A d of 0 or less means that the connection
// never becomes too old.
func newAge(d time.Duration) age {
	if d <= 0 {
		return age{}
	}
	d = min(d, math.MaxInt64/2) // leaves room for jitter
	off := (2*rand.Float64() - 1) * ageJitter * float64(d)
	return age{end: time.Now().Add(d + time.Duration(off))}
}

// over reports whether the connection is too old. Without a limit it does not read the
// clock.
func (a *age) over() bool { return !a.end.IsZero() && !time.Now().Before(a.end) }
