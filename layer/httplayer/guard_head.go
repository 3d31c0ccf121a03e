package httplayer

// start is before a request. One empty line is let through there, as RFC 9112,
// section 2.2, wants it; net/http takes it behind a POST only.
func (s *guardScan) start(p []byte) int {
	switch c := p[0]; {
	case isToken(c):
		s.flags, s.left, s.digit, s.n = 0, 0, 0, 0
		s.step = (*guardScan).method
		return s.method(p)
	case c == '\r' && !s.has(afterBlank):
		s.set(afterBlank)
		return s.on((*guardScan).blank)
	default:
		s.set(isFirst)
		return s.odd(c, BadRequestLine)
	}
}

func (s *guardScan) blank(p []byte) int {
	if p[0] != '\n' {
		return s.refuse(BareCR)
	}
	return s.on((*guardScan).start)
}

func (s *guardScan) method(p []byte) int {
	for i, c := range p {
		if isToken(c) {
			s.keep(c)
			continue
		}
		if c != ' ' {
			s.odd(c, BadRequestLine)
			return i
		}
		if s.is("CONNECT") {
			s.set(isConnect)
		}
		s.step = (*guardScan).target
		return i + 1
	}
	return len(p)
}

// target is the first byte of one.
func (s *guardScan) target(p []byte) int {
	switch c := p[0]; {
	case c == ' ':
		return s.refuse(BadRequestLine)
	case c == '/', c == '*', s.has(isConnect):
		s.step = (*guardScan).path
		return s.path(p)
	default:
		s.set(isAbsolute)
		if s.to == nil {
			s.to = new(guardTarget)
		}
		s.to.reset()
		s.step = (*guardScan).absolute
		return s.absolute(p)
	}
}

// absolute is the scheme and the authority of a target, which are kept.
func (s *guardScan) absolute(p []byte) int {
	c := p[0]
	if c <= ' ' || s.to.whole(c) {
		s.step = (*guardScan).path
		return s.path(p)
	}
	if isControl(c) || !s.to.target.add(c) {
		return s.odd(c, BadRequestLine)
	}
	return 1
}

func (s *guardScan) path(p []byte) int {
	for i, c := range p {
		switch {
		case c > ' ' && c != 0x7f:
		case c == ' ':
			s.n = 0
			s.step = (*guardScan).version
			return i + 1
		default:
			s.odd(c, BadRequestLine)
			return i
		}
	}
	return len(p)
}

// version is the version and the end of the line.
func (s *guardScan) version(p []byte) int {
	const line = "HTTP/1.1\r\n"
	const minor, lf = len(line) - 3, len(line) - 1
	for i, c := range p {
		switch {
		case int(s.n) == minor && c == '0':
			s.set(http10)
		case c == line[s.n]:
		case int(s.n) == lf:
			s.refuse(BareCR)
			return i
		default:
			s.odd(c, BadRequestLine)
			return i
		}
		if s.n++; int(s.n) == len(line) {
			s.step = (*guardScan).field
			return i + 1
		}
	}
	return len(p)
}

// head ends the head of a request, or the trailers.
func (s *guardScan) head(p []byte) int {
	if p[0] != '\n' {
		return s.refuse(BareCR)
	}
	if s.has(inBody) {
		return s.ended()
	}
	if r := s.judge(); r != 0 {
		return s.refuse(r)
	}
	switch {
	case s.has(hasCoding):
		s.set(inBody)
		s.left, s.digit = 0, 0
		return s.on((*guardScan).size)
	case s.left > 0:
		s.set(inBody)
		return s.on((*guardScan).body)
	}
	return s.ended()
}

// judge is what can be said only of a whole head.
func (s *guardScan) judge() GuardReason {
	switch {
	case s.has(hasCoding) && s.has(http10|isConnect):
		return BadTransferEncoding
	case s.has(isConnect) && s.left > 0:
		// Is it content, or what goes through the tunnel?
		return BadLength
	case !s.has(hasHost) && !s.has(http10) && !s.has(isConnect):
		return BadHost
	case s.has(isAbsolute):
		return s.to.judge(s.has(hasHost) && !s.lax)
	}
	return 0
}

// ended takes in the last byte of a request.
func (s *guardScan) ended() int {
	door := s.has(isConnect | hasUpgrade)
	s.flags = 0
	if door {
		s.set(atDoor)
	}
	return s.on((*guardScan).start)
}
