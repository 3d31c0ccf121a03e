package message

import (
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// These are classes of bytes in messages. Each is one bit in an entry of [Class].
const (
	TokenByte  = 1 << iota // allowed in a token (RFC 9110, section 5.6.2)
	ValueByte              // allowed in a field value: VCHAR, SP, HTAB, obs-text
	TargetByte             // allowed in a request target: VCHAR without '#', and bytes above ASCII
	PathByte               // allowed in a path and neither escaped nor unescaped by net/url
	HostByte               // allowed in a host that is not an address in brackets: also bytes above ASCII
	LowerByte
	UpperByte
)

// Class holds one entry per byte value: the set of classes to which the byte belongs.
var Class = makeClass()

// makeClass returns the table of the classes to which each byte belongs, as a set of bits.
func makeClass() (class [256]uint8) {
	for i := range class {
		c := byte(i)
		lower := c >= 'a' && c <= 'z'
		upper := c >= 'A' && c <= 'Z'
		alnum := lower || upper || c >= '0' && c <= '9'
		inSet := func(set string) bool { return alnum || strings.IndexByte(set, c) >= 0 }
		for bit, member := range map[uint8]bool{
			TokenByte:  inSet("!#$%&'*+-.^_`|~"),
			ValueByte:  c == '\t' || c >= ' ' && c != 0x7f,
			TargetByte: c > ' ' && c != 0x7f && c != '#',
			PathByte:   inSet("/-_.~$&+,:;=@"),
			HostByte:   inSet("-._~!$&'()*+,;=%") || c >= 0x80,
			LowerByte:  lower,
			UpperByte:  upper,
		} {
			if member {
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

// ValidValueBytes reports whether each byte of b is allowed in a field value. It checks eight bytes at a
// time, because it sees every value of every message.
func ValidValueBytes(b []byte) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		del := x ^ 0x7f*ones
		// A byte below ' ' or equal to DEL sets its top bit. So does a tab, which is valid, and a
		// subtraction can borrow from the next byte, so All then decides.
		if ((x-' '*ones)&^x|(del-ones)&^del)&tops != 0 && !All(b[:8], ValueByte) {
			return false
		}
		b = b[8:]
	}
	return All(b, ValueByte)
}

// ValidHost reports whether s is valid as a Host field or as an authority without userinfo: a name or an
// IP address, with an optional port of 0 to 65535, which may be empty after its colon. An IPv6 address
// is in brackets. The empty string is valid, because a request whose target has no authority may have an
// empty Host field.
func ValidHost[T string | []byte](s T) bool {
	if len(s) == 0 {
		return true
	}
	end := 0 // the end of the host in s
	if s[0] == '[' {
		for end = 1; end < len(s) && (s[end] == ':' || Class[s[end]]&HostByte != 0); {
			end++
		}
		addr, err := netip.ParseAddr(string(s[1:end]))
		if err != nil || !addr.Is6() || end == len(s) || s[end] != ']' {
			return false
		}
		end++
	}
	// Without brackets, the host is a name or an IPv4 address.
	for s[0] != '[' && end < len(s) && Class[s[end]]&HostByte != 0 {
		end++
	}
	return end == len(s) || end > 0 && s[end] == ':' && validPort(s[end+1:]) // a port needs a host
}

// validPort reports whether s is a port, or empty, as RFC 3986 allows it.
func validPort[T string | []byte](s T) bool {
	n := 0
	for i := range len(s) {
		// A byte below '0' wraps around to a value above 9.
		digit := s[i] - '0'
		if digit > 9 || n > 65535 {
			return false
		}
		n = n*10 + int(digit)
	}
	return n <= 65535
}

// ValidAuthority reports whether s is a host and a port, as in the target of CONNECT.
func ValidAuthority(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || !ValidHost(s) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// EscapedPath returns the path of u as it is sent. Unlike u.EscapedPath, it keeps a RawPath with bytes
// that are not allowed in a URL, such as "|", because a proxy should not change the path that it
// received.
func EscapedPath(u *url.URL) string {
	if u.RawPath == "" && All(u.Path, PathByte) {
		return u.Path
	}
	if u.RawPath != "" && All(u.RawPath, TargetByte) && u.RawPath[0] == '/' && strings.IndexByte(u.RawPath, '?') < 0 {
		if path, err := url.PathUnescape(u.RawPath); err == nil && path == u.Path {
			return u.RawPath
		}
	}
	return u.EscapedPath()
}

// PlainTarget is a fast way to parse most request targets: a path without escapes, with an optional
// query. It sets the path and the query of u and returns true. For any other target it returns false
// and leaves u unchanged.
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
// another character, no digit, or more than 18 digits without leading zeros.
func ParseLength[T string | []byte](value T) int64 {
	for len(value) > 18 && value[0] == '0' {
		value = value[1:]
	}
	if len(value) == 0 || len(value) > 18 {
		return -1
	}
	var n int64
	for i := range len(value) {
		// A byte below '0' wraps around to a value above 9.
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

// Start returns the first bytes of b in quotes, for an error about an answer in another protocol.
func Start(b []byte) string { return strconv.Quote(string(b[:min(len(b), 24)])) }
