package httplayer

import "math"

// field is the first byte of a line of fields.
func (s *guardScan) field(p []byte) int {
	switch c := p[0]; {
	case isToken(c):
		s.n = 0
		s.flags &^= underscore
		s.step = (*guardScan).name
		return s.name(p)
	case c == '\r':
		return s.on((*guardScan).head)
	case c == ' ', c == '\t':
		return s.refuse(ObsFold)
	default:
		return s.odd(c, BadField)
	}
}

// name keeps the name in lower case, with hyphens for underscores: CGI, and all
// that came after it, cannot tell them apart.
func (s *guardScan) name(p []byte) int {
	for i, c := range p {
		switch {
		case 'A' <= c && c <= 'Z':
			s.keep(c + 'a' - 'A')
		case c == '_':
			s.keep('-')
			s.set(underscore)
		case isToken(c):
			s.keep(c)
		case c == ':' && s.named():
			return i + 1
		case c == ':':
			return i
		case c == ' ', c == '\t':
			s.refuse(SpaceBeforeColon)
			return i
		default:
			s.odd(c, BadField)
			return i
		}
	}
	return len(p)
}

// named looks at a whole name.
func (s *guardScan) named() bool {
	step, flag, again := (*guardScan).value, guardFlags(0), GuardReason(0)
	switch {
	case s.is("content-length"):
		step, flag, again = (*guardScan).length, hasLength, RepeatedLength
	case s.is("transfer-encoding"):
		step, flag, again = (*guardScan).coding, hasCoding, BadTransferEncoding
	case s.is("host"):
		step, flag, again = (*guardScan).host, hasHost, BadHost
	case s.is("upgrade"):
		s.set(hasUpgrade)
	}
	s.step, s.n = step, 0
	both := (s.flags|flag)&(hasLength|hasCoding) == hasLength|hasCoding
	switch {
	case flag == 0:
	case s.has(underscore):
		s.refuse(BadField)
	case s.has(inBody):
		s.refuse(BadTrailer)
	case s.has(flag):
		s.refuse(again)
	case both:
		s.refuse(ConflictingLength)
	}
	s.set(flag)
	return s.bad == 0
}

// value is one of no interest.
func (s *guardScan) value(p []byte) int {
	for i, c := range p {
		switch {
		case c >= ' ' && c != 0x7f || c == '\t':
		case c == '\r':
			s.step = (*guardScan).line
			return i + 1
		default:
			s.odd(c, ControlByte)
			return i
		}
	}
	return len(p)
}

// line is the end of a line of fields.
func (s *guardScan) line(p []byte) int {
	if p[0] != '\n' {
		return s.refuse(BareCR)
	}
	return s.on((*guardScan).field)
}

// lengthMost is the digits of the largest length.
const lengthMost = 19

// length is the value of Content-Length.
func (s *guardScan) length(p []byte) int {
	c := p[0]
	d := uint64(c - '0')
	switch {
	case c == ' ' && s.digit == 0:
		return 1
	case c == '\r' && s.digit > 0:
		return s.on((*guardScan).line)
	case d > 9 || s.digit == lengthMost || s.left > (math.MaxInt64-d)/10:
		return s.odd(c, BadLength)
	}
	s.left = s.left*10 + d
	s.digit++
	return 1
}

// coding is the value of Transfer-Encoding.
func (s *guardScan) coding(p []byte) int {
	const want = "chunked"
	c := p[0]
	switch {
	case c == ' ' && s.n == 0:
		return 1
	case c == '\r' && int(s.n) == len(want):
		return s.on((*guardScan).line)
	case int(s.n) == len(want) || c|0x20 != want[s.n]:
		return s.odd(c, BadTransferEncoding)
	}
	s.n++
	return 1
}

// host is the value of Host, up to white space behind it.
func (s *guardScan) host(p []byte) int {
	c := p[0]
	switch {
	case isHost(c):
		s.n = 1
		if s.has(isAbsolute) && !s.to.host.add(c) {
			return s.refuse(BadHost)
		}
		return 1
	case c == ' ' || c == '\t':
		if s.n > 0 {
			s.step = (*guardScan).hostEnd
		}
		return 1
	case c == '\r':
		return s.on((*guardScan).line)
	}
	return s.odd(c, BadHost)
}

func (s *guardScan) hostEnd(p []byte) int {
	switch c := p[0]; c {
	case ' ', '\t':
		return 1
	case '\r':
		return s.on((*guardScan).line)
	default:
		return s.odd(c, BadHost)
	}
}
