package httplayer

import "encoding/binary"

// frameScan follows the frames of one direction of HTTP/2, of which pieces of
// any size come.
type frameScan struct {
	head    [9]byte // of the frame that begins
	have    int     // bytes of it that came
	at      frameHead
	rest    int     // bytes of its payload that are still to come
	payload [8]byte // it begins with, as far as that came
	skip    int     // bytes before the first frame
	open    bool    // a field block, which no other frame may part
	begun   bool    // a first frame has ended
}

type frameHead struct {
	length      int
	kind, flags byte
	stream      uint32
}

// between reports whether a frame may be put in here.
func (s *frameScan) between() bool { return s.have == 0 && s.rest == 0 && s.skip == 0 && !s.open }

// scan looks at the next bytes, and has see called for each frame that ended, with
// what its payload begins with: 8 bytes, if there are so many.
func (s *frameScan) scan(p []byte, see func(frameHead, []byte)) {
	for len(p) > 0 {
		p = p[s.step(p, see):]
	}
}

// toEnd scans to where a frame may be put in, and returns how far that is; all of
// p, if it is not in there.
func (s *frameScan) toEnd(p []byte, see func(frameHead, []byte)) (n int, between bool) {
	for n < len(p) && (!s.begun || !s.between()) {
		n += s.step(p[n:], see)
	}
	return n, s.begun && s.between()
}

// step takes what it can of one frame's head or payload.
func (s *frameScan) step(p []byte, see func(frameHead, []byte)) (n int) {
	switch {
	case s.skip > 0:
		n = min(s.skip, len(p))
		s.skip -= n
		return n
	case s.rest > 0:
		n = min(s.rest, len(p))
		if came := s.at.length - s.rest; came < len(s.payload) {
			copy(s.payload[came:], p[:n])
		}
		s.rest -= n
	default:
		n = copy(s.head[s.have:], p)
		if s.have += n; s.have < len(s.head) {
			return n
		}
		s.have = 0
		s.rest = int(s.head[0])<<16 | int(s.head[1])<<8 | int(s.head[2])
		s.at = frameHead{s.rest, s.head[3], s.head[4], binary.BigEndian.Uint32(s.head[5:]) & maxStream}
		switch s.at.kind {
		case headersFrame, pushFrame, continuationFrame:
			s.open = s.at.flags&endHeaders == 0
		}
	}
	if s.rest == 0 {
		s.ended(see)
	}
	return n
}

func (s *frameScan) ended(see func(frameHead, []byte)) {
	s.begun = true
	see(s.at, s.payload[:min(s.at.length, len(s.payload))])
}
