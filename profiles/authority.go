package profiles

import (
	"fmt"
	"strconv"
	"strings"
)

// Validate says why a Router would leave the target out, or returns nil: the
// authority must be a DNS name and a port from 1 to 65535; an IP address is
// not a name. A weight of 0 is valid.
func (t Target) Validate() error {
	i := strings.LastIndexByte(t.Authority, ':')
	if i < 0 {
		return fmt.Errorf("target %q: no port", t.Authority)
	}
	if port, err := strconv.ParseUint(t.Authority[i+1:], 10, 16); err != nil || port == 0 {
		return fmt.Errorf("target %q: port is not from 1 to 65535", t.Authority)
	}
	if !isName(t.Authority[:i]) {
		return fmt.Errorf("target %q: not a DNS name", t.Authority)
	}
	return nil
}

// isName reports whether s is a DNS name: labels of letters, digits, '-' and
// '_' (service names have them), with an optional dot at the end. A last label
// of digits alone is that of an IPv4 address.
func isName(s string) bool {
	s = strings.TrimSuffix(s, ".")
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

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
