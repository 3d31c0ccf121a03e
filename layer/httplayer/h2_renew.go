package httplayer

import (
	"errors"
	"time"
)

// renew makes a successor in the background for a connection that is too old.
// Whoever finds that it is goes on by the old one.
func (s *single) renew(old *h2Conn) {
	if !s.heirs.begin() {
		return
	}
	go func() {
		_, err, _ := s.flight.Do("", func() (any, error) { return s.make(old, 0) })
		s.heirs.end(err)
	}()
}

// refresh is renew for who waits for room on the connection, and will not call
// before there is some.
func (s *single) refresh() {
	if c := s.current.Load(); c != nil && c.age.over() {
		s.renew(c)
	}
}

// errUseless is what is wrong with a successor that would serve nobody.
var errUseless = errors.New("the new connection takes no requests")

// useless reports whether the old connection is better than this one.
func (c *h2Conn) useless() bool {
	return c.spent() || c.cc.Err() != nil || c.wire.frames.limit.Load() == 0
}

// supersede retires a connection whose place was taken because of its age. It
// is closed when it has nothing left to do, or after the grace.
func (s *single) supersede(old *h2Conn) {
	if old.retired.CompareAndSwap(false, true) {
		s.heirs.agedOut.Add(1)
		if grace := s.endpoint.opts.grace; grace > 0 && s.endpoint.life.Err() == nil {
			s.cutLater(old, grace)
		}
	}
	s.retire(old)
}

// patienceWithSilence is how long a retired connection on which streams were
// reset, and nothing else is left, is kept for a server that does not answer.
const patienceWithSilence = 30 * time.Second

// patienceAtTheEnd is that when the Endpoint has ended: for what says of the last
// streams that they were given up to go out.
const patienceAtTheEnd = time.Second

// abandon is for a retired connection that has nothing left but streams that were
// reset.
func (s *single) abandon(c *h2Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := patienceWithSilence
	if s.closed {
		d = patienceAtTheEnd
	}
	s.cutLaterLocked(c, d)
}

// cutLater closes a connection after d, if nobody said so before.
func (s *single) cutLater(c *h2Conn, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutLaterLocked(c, d)
}

func (s *single) cutLaterLocked(c *h2Conn, d time.Duration) {
	if _, open := s.open[c]; open && c.cut == nil {
		c.cut = time.AfterFunc(d, func() { _ = c.cc.Close() })
	}
}

// spare stops what cutLater began. The caller holds mu.
func (c *h2Conn) spare() {
	if c.cut != nil {
		c.cut.Stop()
		c.cut = nil
	}
}

// age is that of the connection, if there is one.
func (s *single) age() (time.Duration, bool) {
	if c := s.current.Load(); c != nil {
		return time.Since(c.age.since), true
	}
	return 0, false
}
