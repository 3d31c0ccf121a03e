package message

import (
	"encoding/binary"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Classes of bytes in messages. Each is one bit of an entry of [Class].
const (
	TokenByte  = 1 << iota // allowed in a token (RFC 9110, section 5.6.2)
	ValueByte              // allowed in a field value: VCHAR, SP, HTAB, obs-text
	TargetByte             // allowed in a request target: VCHAR without '#'
	PathByte               // allowed in a path and neither escaped nor unescaped by net/url
	HostByte               // allowed in a host with an optional port
	LowerByte
	UpperByte
)

// Class has one entry per byte value. Each entry is the set of the classes to which the
// byte belongs.
var Class = makeClass()

func makeClass() (class [256]uint8) {
	for i := range class {
		c := byte(i)
		lower, upper := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z'
		alnum := lower || upper || c >= '0' && c <= '9'
		in := func(set string) bool { return alnum || strings.IndexByte(set, c) >= 0 }
		for bit, is := range map[uint8]bool{
			TokenByte:  in("!#$%&'*+-.^_`|~"),
			ValueByte:  c == '\t' || c >= ' ' && c != 0x7f,
			TargetByte: c > ' ' && c < 0x7f && c != '#',
			PathByte:   in("/-_.~$&+,:;=@"),
			HostByte:   in("-._~!$&'()*+,;=:[]%"),
			LowerByte:  lower,
			UpperByte:  upper,
		} {
			if is {
				class[i] |= bit
			}
		}
	}
	return class
}

// All reports whether each byte of s belongs to class, which is one of the constants such
// as TokenByte.
func All[T string | []byte](s T, class uint8) bool {
	for i := range len(s) {
		if Class[s[i]]&class == 0 {
			return false
		}
	}
	return true
}

// ValidName reports whether s is a token, such as a field name or a method.
func ValidName(s string) bool { return s != "" && All(s, TokenByte) }

// ValidValue reports whether each byte of s is allowed in a field value.
func ValidValue(s string) bool { return ValidValueBytes([]byte(s)) }

// ValidValueBytes is ValidValue for bytes. It checks eight bytes at a time.
func ValidValueBytes(b []byte) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		del := x ^ 0x7f*ones
		// A byte below ' ' or equal to DEL sets its top bit; look closer then.
		if ((x-' '*ones)&^x|(del-ones)&^del)&tops != 0 && !All(b[:8], ValueByte) {
			return false
		}
		b = b[8:]
	}
	return All(b, ValueByte)
}

// ValidHost reports whether s is a valid authority without userinfo. The empty string is
// valid.
func ValidHost(s string) bool { return All(s, HostByte) }

// ValidAuthority reports whether s is a host and a port, as in the target of CONNECT.
func ValidAuthority(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || !ValidHost(s) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// PlainTarget sets the path and the query of u from target. It supports only a path that
// needs no unescaping, with an optional query. For any other target it returns false and
// does not change u.
func PlainTarget(target string, u *url.URL) bool {
	path, query, asks := strings.Cut(target, "?")
	if path == "" || path[0] != '/' || !All(path, PathByte) {
		return false
	}
	u.Path, u.RawQuery, u.ForceQuery = path, query, asks && query == ""
	return true
}

// ContentLength returns the length in values, which are the values of a Content-Length
// field. It returns -1 if values is not exactly one valid number.
func ContentLength(values []string) int64 {
	if len(values) != 1 {
		return -1
	}
	return ParseLength(values[0])
}

// ParseLength parses value, which must consist of decimal digits. It returns -1 if value has
// another character, no digit, or more than 18 digits.
func ParseLength[T string | []byte](value T) int64 {
	if len(value) == 0 || len(value) > 18 {
		return -1
	}
	var n int64
	for i := range len(value) {
		digit := value[i] - '0'
		if digit > 9 {
			return -1
		}
		n = n*10 + int64(digit)
	}
	return n
}

// BodyAllowed reports whether a response with this status may have a body. It returns false
// for 1xx, 204 and 304.
func BodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
