package authority

import (
	"fmt"
	"strconv"
	"strings"
)

// CheckTarget returns an error if s is not a DNS name, with a port from 1 to 65535. An IP address
// is not a DNS name.
func CheckTarget(s string) error {
	name, text, found := CutPort(s)
	switch port, err := strconv.ParseUint(text, 10, 16); {
	case !found:
		return fmt.Errorf("target %q: no port", s)
	case err != nil || port == 0:
		return fmt.Errorf("target %q: port is not from 1 to 65535", s)
	case !IsDNSName(name):
		return fmt.Errorf("target %q: not a DNS name", s)
	}
	return nil
}

// IsDNSName reports whether s is a DNS name: labels of letters, digits, '-' and '_', with an optional
// dot at the end. The last label must contain something other than digits, unlike in an IPv4 address.
func IsDNSName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	// A name has up to 253 bytes and a label up to 63 (RFC 1035, section 2.3.4).
	if s == "" || len(s) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
		last = label
	}
	return strings.Trim(last, "0123456789") != ""
}

// isLabel reports whether s, a part between two dots, may be in a DNS name.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// isAlphanumeric reports whether c is an ASCII letter or digit.
func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
