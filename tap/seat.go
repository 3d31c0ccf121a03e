package tap

// seat is an exchange's place in the stream of one watcher.
type seat struct {
	*watcher
	stream uint64
	held   *held   // nil when events are sent as they happen
	bodies *bodies // nil when they were not asked for
}

// held is a request that is kept until its outcome is known. Its bytes take
// room in the buffer of the watcher.
type held struct {
	room  *buffer
	bytes int64
	lost  bool
}

func (s *seat) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin reports whether the request will be shown, or may be.
func (s *seat) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	return s.start(init)
}

// start enters the stream with its first event. It returns false if that does not
// fit.
func (s *seat) start(e Event) (ok bool) {
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if ok = s.send(e); !ok {
		s.leave()
	}
	return ok
}

func (s *seat) hold(n int64) bool {
	b := s.buf.Load()
	if b == nil {
		return false
	}
	if !b.hold(n) {
		s.lose()
		return false
	}
	s.held = &held{room: b, bytes: n}
	return true
}

// respond sends e, or makes room for it.
func (s *seat) respond(e Event) {
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
	s.lose()
}

// release ends the hold, and reports whether the request is shown.
func (s *seat) release(matches bool) bool {
	s.held.room.unhold(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}
