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

	"github.com/gotower/gotower/layer/httplayer/internal/h2"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// single manages an Endpoint's HTTP/2 connections. A single one, current, gets all new requests. Others
// are open only as long as they finish their streams.
type single struct {
	endpoint *Endpoint
	cfg      h2.ClientConfig
	flight   singleflight.Group     // lets simultaneous requests share one attempt to connect
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

// init prepares s for e, whose options are set.
func (s *single) init(e *Endpoint) {
	s.endpoint, s.open = e, make(map[*h2Conn]struct{})
	s.cfg = h2.ClientConfig{
		Secure: e.opts.tls != nil, PingInterval: e.opts.pingInterval, PingTimeout: e.opts.pingTimeout,
		PingWhileIdle: e.opts.pingWhileIdle,
		// Ready waits for room on the connection, which may have come with the change.
		Changed: func(*h2.ClientConn) { e.wake.Wake() },
	}
}

const (
	maxAttempts  = 100 // attempts to send a request
	maxFruitless = 3   // attempts that found a server which processed no request
)

// call sends req on the current connection, and makes one if there is none. If the server has not
// processed the request, call sends it again, on a new connection if the server has ended the previous
// one. A server that ends each connection with GOAWAY after some requests therefore makes none of them
// fail. After maxFruitless attempts at which the server processed nothing, the request is rejected.
func (s *single) call(ctx context.Context, req *http.Request, trace message.Trace) (*http.Response, error) {
	e := s.endpoint
	request := e.newSending(ctx, req, trace)
	for attempts, fruitless := 0, 0; attempts < maxAttempts && fruitless < maxFruitless; attempts++ {
		reused := s.serves() // for the trace only
		c, err := s.get(ctx, attempt{trace, !needsHTTP2(req)})
		if err == nil && request.failure != nil { // the request was admitted before
			err = s.await(ctx, c)
		}
		if err != nil {
			return nil, request.reject(err)
		}
		// If neither case applies, the connection has ended since get returned it.
		switch {
		case c.Reserve():
			if c.age.over() {
				s.renew(c)
			}
			trace.GotConn(c.NetConn(), reused, 0)
			rsp, err, again := request.exchange(c, c.tls)
			if !again {
				return rsp, err
			}
		case c.Usable(): // all slots are taken
			return nil, request.reject(e.full)
		}
		// A server that never makes progress must not keep the request for ever.
		// No progress: the server refused the stream, or has never processed any on this connection.
		if c.Usable() || !c.Served() {
			fruitless++
		}
		if !c.Usable() {
			s.retire(c)
		}
	}
	if request.failure == nil {
		request.failure = errNoUse
	}
	return nil, request.unprocessed()
}

// errNoUse is the failure of a request for which no connection stayed open long enough.
var errNoUse = fmt.Errorf("%w: connections end before they can be used", message.ErrNotSent)

// await waits until c can take another stream or accepts no more requests. It is used for a request
// that was admitted and must be sent again: rejecting it because all streams are in use would be wrong.
func (s *single) await(ctx context.Context, c *h2Conn) error {
	if s.endpoint.wake.Wait(ctx, func() bool { return c.Active() < c.Limit() || !c.Usable() }) != nil {
		return s.endpoint.goneError(ctx)
	}
	return nil
}

// attempt specifies how a connection for HTTP/2 is made, for the call that makes it and others that
// wait for it.
type attempt struct {
	trace   message.Trace // hooks of the request for which it is made
	orHTTP1 bool          // the server may select HTTP/1.1
}

// get returns the current connection. If none exists yet, it makes one as a specifies, and waits for it.
func (s *single) get(ctx context.Context, a attempt) (*h2Conn, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	e := s.endpoint
	allowed, _, err := e.link.admit()
	if err != nil {
		return nil, e.unreachable(err)
	}
	// If ctx ends first, the attempt continues, and its connection serves later requests.
	select {
	case r := <-s.connectOnce(allowed, a):
		if r.Err != nil {
			return nil, e.unreachable(r.Err)
		}
		return r.Val.(*h2Conn), nil //nolint:errcheck,forcetypeassert // connectOnce sends nothing else
	case <-ctx.Done():
		return nil, e.goneError(ctx)
	}
}

// connectOnce makes a connection on a new goroutine and sends it to the returned channel. If a
// connection is being made already, the channel receives that one, so that simultaneous requests share
// one attempt. allowed is the result of link.admit.
func (s *single) connectOnce(allowed bool, a attempt) <-chan singleflight.Result {
	return s.flight.DoChan("", func() (any, error) {
		if c := s.current.Load(); c != nil && c.Usable() { // made since the caller has looked
			return c, nil
		}
		c, err := s.connect(a)
		s.endpoint.tried(http2, allowed, err)
		return c, err
	})
}

// errNotH2 reports that the server answered, but not in HTTP/2. A connection that ends without an
// answer does not mean this, because restarting servers and load balancers without a server also
// end connections.
var errNotH2 = errors.New("the server does not speak HTTP/2")

// connect makes a connection, waits for the server's SETTINGS, which show that it speaks HTTP/2, and
// makes it the current one. If the server selects HTTP/1.1 in the TLS handshake, the connection goes to
// the HTTP/1.1 pool, and the error is errNotH2.
func (s *single) connect(a attempt) (*h2Conn, error) {
	e := s.endpoint
	ctx, cancel := context.WithTimeout(e.life, e.opts.connectTimeout)
	defer cancel()
	offers := []string{http2.String()}
	if a.orHTTP1 && e.opts.tls != nil && !e.opts.protocol.isFixed() {
		offers = append(offers, http1.String())
	}
	conn, state, err := e.dial(a.trace.Context(ctx), offers...)
	switch {
	case err != nil:
		return nil, err
	case len(offers) > 1 && state.NegotiatedProtocol != offers[0]:
		e.h1.adopt(conn, state)
		return nil, errNotH2
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
		// What the server sent was not HTTP/2.
		if invalid, ok := errors.AsType[*h2.ConnError](err); ok && !invalid.Remote {
			return nil, errNotH2
		}
		return nil, fmt.Errorf("the new connection ended: %w", err)
	}
}

// publish makes c the current connection, and drains the previous one, which closes after its last
// stream. It starts a goroutine that drains c when the Endpoint's context ends, and forgets it when it
// has closed.
func (s *single) publish(c *h2Conn) {
	s.mu.Lock()
	s.open[c] = struct{}{}
	old := s.current.Swap(c)
	s.mu.Unlock()
	if old != nil {
		s.retire(old)
	}
	go func() {
		// In both cases c gets no further requests, and closes after its last one.
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

// closeIdle closes the connections on which no request is in flight.
func (s *single) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.Active() == 0 {
			s.retire(c)
		}
	}
}

// renew replaces c, which is too old, in the background. If no new connection can be made, c stays in
// use, and further calls do nothing until a backoff has passed.
func (s *single) renew(c *h2Conn) {
	if !c.renews.CompareAndSwap(false, true) {
		return
	}
	go func() {
		if _, err := s.connect(attempt{}); err != nil {
			time.AfterFunc(s.endpoint.opts.backoff.Delay(0), func() { c.renews.Store(false) })
		}
	}()
}

// room reports whether the server allows one more stream on the current connection. Without a
// usable connection, it returns mayConnect, which specifies whether a new connection
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

// age limits a connection's time: after end, the connection is too old and is replaced. The zero
// value sets no limit.
type age struct{ end time.Time }

// ageJitter is the fraction by which the age limit of a connection varies at random, as for
// gRPC's MAX_CONNECTION_AGE (gRFC A9).
const ageJitter = 0.1

// newAge returns the age limit for a new connection, after about the duration d, which it varies
// at random by up to ageJitter. A d of 0 or less means that the connection never becomes too old.
func newAge(d time.Duration) age {
	if d <= 0 {
		return age{}
	}
	d = min(d, math.MaxInt64/2) // leaves room for jitter
	// off is between -10 % and +10 % of d. It keeps connections that began together from ending together.
	off := (2*rand.Float64() - 1) * ageJitter * float64(d)
	return age{end: time.Now().Add(d + time.Duration(off))}
}

// over reports whether the connection is too old. Without a limit it does not read the
// clock.
func (a *age) over() bool { return !a.end.IsZero() && !time.Now().Before(a.end) }
