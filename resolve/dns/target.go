package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/resolve"
)

// target is a parsed target. Streams with equal targets share their lookups.
type target struct {
	literal netip.AddrPort // the endpoint, if the target is an address
	srv     string         // the name of SRV records, or ""
	// the name of A and AAAA records, or ""; used if srv is "" or has no records
	host     string
	port     uint16 // the port of host
	complete bool   // whether the search list does not apply
}

// parseTarget parses s, which must have one of the forms in the package documentation. The
// error matches resolve.ErrUnresolvable.
func parseTarget(s string) (target, error) {
	t, err := parse(s)
	if err != nil {
		return target{}, fmt.Errorf("dns: target %q: %w: %w", s, resolve.ErrUnresolvable, err)
	}
	return t, nil
}

func parse(s string) (target, error) {
	if addr, err := netip.ParseAddrPort(s); err == nil {
		ip := addr.Addr().Unmap()
		switch {
		case addr.Port() == 0:
			return target{}, errPort
		case ip.WithZone("").IsUnspecified():
			return target{}, errUnspecified
		}
		return target{literal: netip.AddrPortFrom(ip, addr.Port())}, nil
	}
	s, service, withPort := authority.CutPort(s)
	if _, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil || strings.ContainsAny(s, ":[]") {
		return target{}, errors.New("an address needs a port that is a number: write 10.0.0.1:80 or [fd00::1]:80")
	}
	name, err := cleanName(s)
	if err != nil {
		return target{}, err
	}
	t := target{complete: strings.HasSuffix(s, ".")}
	if !withPort {
		if isLocalhost(name) {
			return target{}, fmt.Errorf("a name without a port asks for SRV records, and %s has none: write %s:80", name, name)
		}
		t.srv = name
		return t, nil
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil || n == 0 {
		return target{}, errPort
	}
	t.port, t.host = uint16(n), name
	if host, ok := serviceHost(name); ok {
		t.srv, t.host = name, host
	}
	return t, nil
}

// isPortless reports whether the target is a plain name such as "web", without a port and
// without the labels _service._proto of an SRV name. Such a target often lacks its port by
// mistake.
func (t target) isPortless() bool { return t.host == "" && !strings.HasPrefix(t.srv, "_") }

// noSRV returns the error for a target that has neither a port nor SRV records. The error
// advises to add a port.
func noSRV(name string) error {
	return fmt.Errorf("dns: resolve %q: no endpoints by SRV records: "+
		"a name without a port asks for SRV records; write %s:80 to ask for A and AAAA records", name, name)
}

var (
	errPort        = errors.New("the port is not a number from 1 to 65535")
	errUnspecified = errors.New("the unspecified address is for listening: write the address to connect to")
)

// serviceHost returns the part of name that follows _service._proto. It returns false if
// name does not begin with such labels.
func serviceHost(name string) (host string, ok bool) {
	labels := strings.SplitN(name, ".", 3)
	if len(labels) < 3 || labels[0][0] != '_' || labels[1][0] != '_' {
		return "", false
	}
	return labels[2], true
}

// cleanName returns a name in lower case without its final dot. It returns an error if
// s is not a valid name (RFC 1035, section 2.3.4) or has characters that host and
// service names do not have.
func cleanName(s string) (string, error) {
	s = strings.TrimSuffix(s, ".")
	switch {
	case s == "":
		return "", errors.New("missing name")
	case len(s) > 253:
		return "", fmt.Errorf("the name has %d characters; 253 are the most", len(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		switch {
		case label == "":
			return "", errors.New("the name has an empty label")
		case len(label) > 63:
			return "", fmt.Errorf("the label %q has %d characters; 63 are the most", label, len(label))
		}
	}
	if i := strings.IndexFunc(s, notInName); i >= 0 {
		return "", fmt.Errorf("the name has a character other than a-z, 0-9, - and _ at %q; write others as xn--", s[i:])
	}
	return strings.ToLower(s), nil
}

func notInName(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		return false
	}
	return true
}
