package httplayer

import "math"

// body is one with a length, or the data of a chunk.
func (s *guardScan) body(p []byte) int {
	if s.left > uint64(len(p)) {
		s.left -= uint64(len(p))
		return len(p)
	}
	n := int(s.left)
	s.left = 0
	if s.has(hasCoding) {
		s.step = (*guardScan).dataCR
		return n
	}
	s.ended()
	return n
}

func (s *guardScan) dataCR(p []byte) int {
	if p[0] != '\r' {
		return s.refuse(BadChunk)
	}
	return s.on((*guardScan).dataLF)
}

func (s *guardScan) dataLF(p []byte) int {
	if p[0] != '\n' {
		return s.refuse(BadChunk)
	}
	s.digit = 0
	return s.on((*guardScan).size)
}

// sizeMost is the digits of the largest size of a chunk.
const sizeMost = 16

// size is the size of a chunk.
func (s *guardScan) size(p []byte) int {
	c := p[0]
	d, ok := unhex(c)
	switch {
	case c == '\r' && s.digit > 0:
		return s.on((*guardScan).sizeLF)
	case c == ';' && s.digit > 0:
		s.n, s.digit = 0, 0
		return s.on((*guardScan).extName)
	case !ok || s.digit == sizeMost || s.left > math.MaxInt64>>4:
		return s.refuse(BadChunk)
	}
	s.left = s.left<<4 | d
	s.digit++
	return 1
}

func unhex(c byte) (uint64, bool) {
	switch {
	case '0' <= c && c <= '9':
		return uint64(c - '0'), true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return uint64(c|0x20-'a') + 10, true
	}
	return 0, false
}

func (s *guardScan) sizeLF(p []byte) int {
	if p[0] != '\n' {
		return s.refuse(BadChunk)
	}
	if s.left == 0 {
		return s.on((*guardScan).field)
	}
	return s.on((*guardScan).body)
}

// extensionMost is how long the extensions of a chunk may be, in bytes.
const extensionMost = 1024

// ext takes in a byte of an extension. An extension is a name, or a name and a
// value, with no white space about them.
func (s *guardScan) ext(next guardStep) int {
	if s.digit == extensionMost {
		return s.refuse(BadChunk)
	}
	s.digit++
	s.n = 1
	return s.on(next)
}

// extName is the name of an extension: s.n is 0 before its first byte.
func (s *guardScan) extName(p []byte) int {
	if c := p[0]; c == '=' && s.n > 0 {
		n := s.ext((*guardScan).extValue)
		s.n = 0
		return n
	}
	return s.extToken(p, (*guardScan).extName)
}

// extValue is the value of an extension: s.n is 0 before its first byte.
func (s *guardScan) extValue(p []byte) int {
	if c := p[0]; c == '"' && s.n == 0 {
		return s.ext((*guardScan).extQuoted)
	}
	return s.extToken(p, (*guardScan).extValue)
}

// extToken goes on with a token, or ends it.
func (s *guardScan) extToken(p []byte, again guardStep) int {
	switch c := p[0]; {
	case isToken(c):
		return s.ext(again)
	case s.n > 0:
		return s.extEnd(p)
	}
	return s.refuse(BadChunk)
}

// extEnd is behind an extension.
func (s *guardScan) extEnd(p []byte) int {
	switch p[0] {
	case '\r':
		return s.on((*guardScan).sizeLF)
	case ';':
		n := s.ext((*guardScan).extName)
		s.n = 0
		return n
	}
	return s.refuse(BadChunk)
}

func (s *guardScan) extQuoted(p []byte) int {
	switch c := p[0]; {
	case c == '"':
		return s.ext((*guardScan).extEnd)
	case c == '\\':
		return s.ext((*guardScan).extEscaped)
	case isControl(c) && c != '\t':
		return s.refuse(BadChunk)
	}
	return s.ext((*guardScan).extQuoted)
}

func (s *guardScan) extEscaped(p []byte) int {
	if c := p[0]; isControl(c) && c != '\t' {
		return s.refuse(BadChunk)
	}
	return s.ext((*guardScan).extQuoted)
}
