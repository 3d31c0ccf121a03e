package tap

// recipient is a watcher together with its state for one request or connection that it sees.
type recipient struct {
	*watcher
	stream uint64
	held   *held   // state of a held request; nil if events are sent at once
	bodies *bodies // kept bodies; nil if the watcher does not request them
}

// held is the state of a request with events that are not sent yet, because the watcher has a
// condition on the outcome. The events are sent when the outcome is known and matches. Until
// then, their bytes are reserved in the buffer of the watcher.
type held struct {
	room  *buffer // the buffer in which bytes are reserved
	bytes int64
	lost  bool // whether an event did not fit; the request is then not shown
}

func (s *recipient) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin sends the RequestInit. If the watcher has a condition on the outcome, begin instead
// holds the request, and the events are sent later. It returns false if the watcher does not see
// the request.
func (s *recipient) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	return s.start(init)
}

// start sends e, the first event of a request or connection. It returns false if e does not fit
// into the buffer, or if the watcher has reached its limit or its rate. The watcher then does not
// see the request or connection.
func (s *recipient) start(e Event) (ok bool) {
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if ok = s.send(e); !ok {
		s.leave()
	}
	return ok
}

// hold marks the request as held, and reserves n bytes for it in the buffer. It returns false if
// the buffer has no room for the bytes, if too many requests are held, or if the watcher has
// been closed.
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

// respond sends e, the event of the response headers. If the request is held, respond only
// reserves the bytes of e in the buffer. If these bytes do not fit, the watcher gets no event of
// the request at all.
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
	s.held.lost = true
	s.bodies.drop()
	s.countDrop()
}

// release releases the reserved bytes of a held request. The argument matches reports whether
// the outcome matches the condition of the watcher. If release returns true, the caller must
// send the held events. It returns false if they must not be sent.
func (s *recipient) release(matches bool) bool {
	s.held.room.unhold(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}
