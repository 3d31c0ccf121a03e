package httplayer

// Sets of bytes below 128, as bits.
const (
	tokenLow  = 0x03ff6cfa00000000 // ! # $ % & ' * + - . and digits
	tokenHigh = 0x57ffffffc7fffffe // letters, ^ _ ` | ~
	hostLow   = 0x2fff6ff200000000 // ! $ % & ' ( ) * + - . : ; = and digits
	hostHigh  = 0x47fffffeaffffffe // letters, [ ] _ ~
)

func oneOf(c byte, low, high uint64) bool {
	switch c >> 6 {
	case 0:
		return low>>c&1 != 0
	case 1:
		return high>>(c&63)&1 != 0
	}
	return false
}

// isToken is tchar of RFC 9110, section 5.6.2.
func isToken(c byte) bool { return oneOf(c, tokenLow, tokenHigh) }

// isHost is what RFC 3986 allows in a host with a port, but for the comma:
// there it would be two hosts joined.
func isHost(c byte) bool { return oneOf(c, hostLow, hostHigh) }

func isControl(c byte) bool { return c < ' ' || c == 0x7f }

// keep adds a byte to the word. One that is too long is none that matters.
func (s *guardScan) keep(c byte) {
	if int(s.n) < len(s.word) {
		s.word[s.n] = c
	}
	if int(s.n) <= len(s.word) {
		s.n++
	}
}

// is reports whether that is the word.
func (s *guardScan) is(word string) bool {
	return int(s.n) == len(word) && string(s.word[:len(word)]) == word
}
