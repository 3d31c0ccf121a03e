package httplayer

// guardScan follows the framing of the requests of one connection, byte by
// byte. It keeps no more of them than the names and numbers that framing needs.
//
//	preface ─ start ─ method ─ target ─ version ─ fields ─┬─ start …
//	                                                      ├─ body ── start …
//	                                                      └─ size ─ data ─ size … trailers ─ start …
type guardScan struct {
	step  guardStep
	kind  guardKind
	bad   GuardReason // 0 while all is well
	flags guardFlags
	left  uint64 // of the body or chunk; or a number that is being read
	digit uint16 // how many digits it has, or how long a chunk's extensions are
	n     uint8  // bytes in word, or of a word that must be matched
	word  [18]byte
	lax   bool         // an absolute target counts, whatever Host says
	to    *guardTarget // nil before the first absolute target
}

// guardStep takes in some of p, which is not empty, and returns how much. It
// stops before the byte that offends.
type guardStep func(s *guardScan, p []byte) int

type guardFlags uint16

const (
	http10     guardFlags = 1 << iota // the version is HTTP/1.0
	isConnect                         // the method is CONNECT
	hasLength                         // there is a Content-Length
	hasCoding                         // there is a Transfer-Encoding
	hasHost                           // there is a Host
	isAbsolute                        // the target names a host
	underscore                        // the name has an underscore where the one it was compared with has a hyphen
	afterBlank                        // an empty line came before the request
	inBody                            // past the head
	isFirst                           // the byte that offends is the first of a request
	hasUpgrade                        // there is an Upgrade
	atDoor                            // behind a request that may end HTTP here
)

func (s *guardScan) has(f guardFlags) bool { return s.flags&f != 0 }
func (s *guardScan) set(f guardFlags)      { s.flags |= f }

// scan takes in p up to the byte that offends, or that may not be HTTP any more,
// and returns how much that was.
// It is less than 0 where bytes of before, that were to be kept until it was
// clear what they are, offend.
func (s *guardScan) scan(p []byte) int {
	i := 0
	s.flags &^= atDoor // p is a next request, if there is one at all
	for i < len(p) && s.bad == 0 && !s.has(atDoor) {
		i += s.step(s, p[i:])
	}
	return i
}

// refuse makes the byte that is looked at the one that offends.
func (s *guardScan) refuse(r GuardReason) int {
	s.bad = r
	return 0
}

// odd is refuse for a byte that is not expected. Most have a reason of their
// own wherever they are.
func (s *guardScan) odd(c byte, r GuardReason) int {
	switch {
	case c == '\n':
		r = BareLF
	case c != '\t' && c != '\r' && isControl(c):
		r = ControlByte
	}
	return s.refuse(r)
}

// on takes in one byte.
func (s *guardScan) on(next guardStep) int {
	s.step = next
	return 1
}

// guardKind is what a connection turned out to be.
type guardKind uint8

const (
	guardUndecided guardKind = iota
	guardH1
	guardH2
)

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// preface is the beginning of a connection. What is not the preface of HTTP/2
// is a request.
func (s *guardScan) preface(p []byte) int {
	before, n := int(s.n), 0
	for n < len(p) && before+n < len(h2Preface) && p[n] == h2Preface[before+n] {
		n++
	}
	s.n += uint8(n)
	switch {
	case before+n == len(h2Preface):
		s.kind = guardH2
		return s.pass(p)
	case n == len(p):
		return n
	}
	s.kind = guardH1
	s.step = (*guardScan).start
	if taken := s.scan([]byte(h2Preface[:before+n])); s.bad != 0 {
		return taken - before
	}
	return n
}

// pass is HTTP/2, which is not looked at.
func (s *guardScan) pass(p []byte) int {
	s.step = (*guardScan).pass
	return len(p)
}

// undecided reports whether what was scanned may be the preface of HTTP/2, and
// may not.
func (s *guardScan) undecided() bool { return s.kind == guardUndecided && s.n > 0 }
