package httplayer

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// single is the HTTP/2 connection of an Endpoint: one at a time, beside those
// that are going away.
type single struct {
	endpoint  *Endpoint
	transport *http.Transport
	flight    singleflight.Group
	current   atomic.Pointer[h2Conn] // nil if there is none
	heirs     succession

	mu     sync.Mutex
	open   map[*h2Conn]struct{}
	closed bool
}

// h2Conn is one connection. Its streams are counted here, not by net/http's
// Reserve. net/http counts a stream twice while it is being reset; a RoundTrip
// that comes then waits for a stream although it has reserved one, keeps out
// all who come after it, and waits for ever once these have reserved the rest.
// Without reservations it waits until the reset was written, at the longest.
type h2Conn struct {
	owner   *single
	cc      *http.ClientConn
	wire    *wire
	age     age
	active  atomic.Int64 // requests that have not ended
	aborted atomic.Bool  // net/http may still count some that have
	silence silence      // since one was aborted
	retired atomic.Bool  // no new streams; closed when there are none left
	cut     *time.Timer  // ends the grace, of the owner's mu; nil if there is none
}

// acquire takes a place for one stream.
func (c *h2Conn) acquire() bool {
	for {
		n := c.active.Load()
		if c.spent() || !c.allows(n) {
			return false
		}
		if c.active.CompareAndSwap(n, n+1) {
			break
		}
	}
	if c.retired.Load() {
		// Whoever retired it may have seen this one and left it open.
		c.active.Add(-1)
		c.settle()
		return false
	}
	return true
}

// allows reports whether there is room for one more beside n. A stream that was
// reset takes its place until the server gave a sign of life: were that
// ignored, requests would wait for a server that is no more.
func (c *h2Conn) allows(n int64) bool {
	limit := c.wire.frames.limit.Load()
	return n < limit && (!c.aborted.Load() || int64(c.cc.InFlight()) < limit)
}

// Data and End make a connection the observer of the responses that came by
// it: the place of a stream comes back when its response ended.
func (c *h2Conn) Data(int) {}

func (c *h2Conn) End(err error) {
	if err != nil {
		c.silence.begin(c.wire.frames.pieces.Load())
		c.aborted.Store(true)
	}
	c.active.Add(-1)
	c.settle()
	c.owner.endpoint.wake.Wake()
}

// spent reports whether the connection takes no new streams, whatever room
// there is.
func (c *h2Conn) spent() bool { return c.retired.Load() || c.wire.frames.goAway.Load() || c.dead() }

// dead reports whether the server is silent since a stream was reset. Where
// net/http still awaits its word of that one, anything else that it says is no more
// than a sign of life.
func (c *h2Conn) dead() bool {
	pieces := c.wire.frames.pieces.Load()
	if c.aborted.Load() && int64(c.cc.InFlight()) > c.active.Load() {
		c.silence.begin(pieces)
	}
	return c.silence.lasts(pieces)
}

// settle closes a retired connection that has nothing left to do. Where only
// streams are left that were reset, it does not wait for word of them for ever.
func (c *h2Conn) settle() {
	switch {
	case !c.retired.Load() || c.active.Load() > 0:
	case c.cc.InFlight() == 0 || c.dead():
		_ = c.cc.Close()
	case c.aborted.Load():
		c.owner.abandon(c)
	}
}

func (s *single) retire(c *h2Conn) {
	c.retired.Store(true)
	s.current.CompareAndSwap(c, nil)
	c.settle()
}

// changed is called by net/http when a stream ended or the connection did.
func (s *single) changed(c *h2Conn) {
	if c.cc.Err() != nil {
		s.retire(c)
		s.mu.Lock()
		delete(s.open, c)
		c.spare()
		s.mu.Unlock()
	}
	if int64(c.cc.InFlight()) <= c.active.Load() {
		c.aborted.Store(false)
	}
	c.settle()
	s.endpoint.wake.Wake()
}

func (s *single) shut() {
	s.mu.Lock()
	s.closed = true
	conns := make([]*h2Conn, 0, len(s.open))
	for c := range s.open {
		c.spare()
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		s.retire(c)
	}
}

func (s *single) room(mayConnect bool) bool {
	c := s.current.Load()
	if !c.serves() {
		return mayConnect
	}
	return c.allows(c.active.Load())
}

// serves reports whether there is a connection that takes streams, when there is
// room.
func (s *single) serves() bool { return s.current.Load().serves() }

func (c *h2Conn) serves() bool { return c != nil && !c.spent() && c.cc.Err() == nil }

// usage is for Describe.
func (s *single) usage() (conns, idle, inFlight int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		n := int(c.active.Load())
		if n == 0 {
			idle++
		}
		inFlight += n
	}
	return len(s.open), idle, inFlight
}
