package tap

// recipient is one watcher that sees one request or connection.
type recipient struct {
	*watcher
	stream uint64
	held   *held   // state of a held request; nil if events are sent at once
	bodies *bodies // kept bodies; nil if the watcher does not request them
}

// held is the state of a request for a watcher with a condition on the outcome. The events
// of the request are held: they are sent when the outcome is known and matches. Until then,
// their bytes are reserved in the buffer of the watcher.
type held struct {
	room  *buffer // the buffer in which bytes are reserved
	bytes int64
	lost  bool // whether an event did not fit; the request is then not shown
}

func (s *recipient) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin sends the RequestInit, or holds the request if the watcher has a condition on the
// outcome. It returns false if the watcher does not see the request.
func (s *recipient) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	return s.start(init)
}

// start sends e, the first event of a request or connection. It returns false if e does not
// fit, or if the watcher has reached its limit or rate. The watcher then does not see the
// request or connection.
func (s *recipient) start(e Event) (ok bool) {
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if ok = s.send(e); !ok {
		s.leave()
	}
	return ok
}

// hold marks the request as held, and reserves n bytes for it in the buffer. It returns
// false if the buffer has no room for them or for another request, or if the watcher has
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

// respond sends e, the event of the response headers. If the request is held, respond
// reserves the bytes of e instead. If they do not fit, no event of the request is sent.
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

// release releases the reserved bytes of a held request. The argument matches reports
// whether the outcome of the request matches the condition of the watcher. release returns
// true if the caller must now send the held events.
func (s *recipient) release(matches bool) bool {
	s.held.room.unhold(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}
