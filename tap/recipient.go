package tap

// recipient is a watcher that sees a certain request or connection, with its state for that one.
type recipient struct {
	*watcher
	stream uint64
	held   *held   // state of a held request; nil if events are sent at once
	bodies *bodies // kept bodies; nil if the watcher does not request them
}

// held is the state of a request whose events are held back, because the watcher has a condition on the
// outcome, which is not known yet. Meanwhile the events' bytes are reserved in the watcher's buffer.
type held struct {
	room  *buffer // the buffer in which bytes are reserved
	bytes int64
	lost  bool // whether an event did not fit; the request is then not shown
}

// send sends e with the ID of the request or connection.
func (s *recipient) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin sends the RequestInit, or holds the request back if the watcher has a condition on the outcome.
// It returns false if the watcher cannot see the request; see start and hold.
func (s *recipient) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	return s.start(init)
}

// start sends e, the first event about a request or connection. It returns false if e does not
// fit into the buffer, or if the watcher has reached its limit or its rate. The watcher then does
// not see the request or connection.
func (s *recipient) start(e Event) (ok bool) {
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if ok = s.send(e); ok {
		s.sent()
	} else {
		s.unsent()
	}
	return ok
}

// hold marks the request as held, and reserves n bytes for it in the buffer. It returns false if
// the bytes do not fit into the buffer, if too many requests are held, or if the watcher has been
// closed.
func (s *recipient) hold(n int64) bool {
	b := s.buf.Load()
	if b == nil {
		return false
	}
	if !b.hold(n) {
		s.countDrop()
		return false
	}
	s.held = &held{room: b, bytes: n}
	return true
}

// respond sends e, the ResponseInit. If the request is held back, respond only reserves e's bytes; if
// they do not fit, the watcher gets no event about the request at all.
func (s *recipient) respond(e Event) {
	if s.held == nil {
		s.send(e)
		return
	}
	n := e.weight()
	if s.held.room.reserve(n) {
		s.held.bytes += n
		return
	}
	// The whole request is lost, because a watcher must not see a part of it.
	s.held.lost = true
	s.bodies.drop()
	s.countDrop()
}

// release ends the holding back, now that the outcome is known. matches is true if it meets the
// watcher's condition. If release returns true, the caller must send the held events, and otherwise
// discard them.
func (s *recipient) release(matches bool) bool {
	// The room is free again, so that the held events themselves can use it.
	s.held.room.unhold(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}
