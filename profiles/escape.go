package profiles

import (
	"fmt"
	"strings"
)

// appendEscaped appends s to b. It percent-encodes spaces, control characters and those in ends.
func appendEscaped(b []byte, s, ends string) []byte {
	for i := range len(s) {
		// These characters would end the part of the URL or are not allowed in it.
		if c := s[i]; c <= ' ' || c == 0x7f || strings.IndexByte(ends, c) >= 0 {
			b = fmt.Appendf(b, "%%%02X", c)
		} else {
			b = append(b, c)
		}
	}
	return b
}

// plain holds the path bytes that are not percent-encoded (RFC 3986), without '%'.
// It is a table, because each byte of each path is looked up.
var plain = func() (set [256]bool) { //nolint:gochecknoglobals // constant
	for c := range set {
		set[c] = c > ' ' && c <= '~' && strings.IndexByte("\"#%<>?\\^`{|}", byte(c)) < 0
	}
	return set
}()

// escaped returns path in the form that conditions have: its bytes that RFC 3986 excludes are
// percent-encoded. A path without such bytes is not copied.
func escaped(path string) string {
	// b stays nil as long as nothing must be escaped.
	var b []byte
	length := 0 // the length of the part of path that b has
	for i := range len(path) {
		if plain[path[i]] || isEscape(path[i:]) {
			continue
		}
		b = fmt.Appendf(append(b, path[length:i]...), "%%%02X", path[i])
		length = i + 1
	}
	if length == 0 {
		return path
	}
	return string(append(b, path[length:]...))
}

// isEscape reports whether s begins with a percent-encoded character.
func isEscape(s string) bool { return len(s) > 2 && s[0] == '%' && isHex(s[1]) && isHex(s[2]) }

// isHex reports whether c is a hexadecimal digit. The bit 0x20 turns an upper-case letter into lower case.
func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f' }
