package tap

// recipient is one watcher of one request or connection.
type recipient struct {
	*watcher
	stream uint64
	held   *held   // nil if events are sent at once
	bodies *bodies // nil if not requested
}

// held is a request that is kept until its outcome is known. Its bytes count as text in
// the buffer of the watcher.
type held struct {
	room  *buffer // where bytes are reserved
	bytes int64
	lost  bool // an event did not fit
}

func (s *recipient) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin sends or holds the first event. It returns false if the watcher does not see the request.
func (s *recipient) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	return s.start(init)
}

// start sends the first event. It returns false if the event does not fit.
func (s *recipient) start(e Event) (ok bool) {
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if ok = s.send(e); !ok {
		s.leave()
	}
	return ok
}

// hold reserves n bytes for a held request. It returns false if they do not fit.
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

// respond sends e, or reserves its bytes if the request is held.
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

// release ends the hold. It returns true if the watcher sees the request.
func (s *recipient) release(matches bool) bool {
	s.held.room.unhold(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}
