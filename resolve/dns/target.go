package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/resolve"
)

// target is a parsed target: an address, the name of SRV records, a host with a port, or the latter two.
// Streams with equal targets share their lookups.
type target struct {
	literal netip.AddrPort // the endpoint, if the target is an address
	srv     string         // the name of SRV records, or ""
	// the name for A and AAAA records, or ""; used if srv is "" or there are no such records
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

// Validate returns an error that matches [resolve.ErrUnresolvable] if name has none of the forms in the
// package documentation, so that a Resolver can never resolve it. It looks nothing up.
func Validate(name string) error {
	_, err := parseTarget(name)
	return err
}

// parse is parseTarget, but its errors do not contain s and do not match resolve.ErrUnresolvable.
func parse(s string) (target, error) {
	// A frequent mistake, for which a special message helps.
	if strings.Contains(s, "/") {
		return target{}, errors.New("a URL or a path: want host:port, such as web.default:8080")
	}
	if addr, err := netip.ParseAddrPort(s); err == nil {
		ip := addr.Addr().Unmap()
		if addr.Port() == 0 {
			return target{}, errPort
		}
		return target{literal: netip.AddrPortFrom(ip, addr.Port())}, nil
	}
	// From here on, s is a name, with or without a port.
	s, port, withPort := authority.CutPort(s)
	// What is left with brackets or colons is an address without a usable port.
	if _, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil || strings.ContainsAny(s, ":[]") {
		return target{}, errors.New("an address needs a port that is a number: write 10.0.0.1:80 or [fd00::1]:80")
	}
	name, err := cleanName(s)
	if err != nil {
		return target{}, err
	}
	t := target{complete: strings.HasSuffix(s, ".")}
	// A name without a port can only have SRV records, which contain the port.
	if !withPort {
		if isLocalhost(name) {
			return target{}, fmt.Errorf("a name without a port asks for SRV records, and %s has none: write %s:80", name, name)
		}
		t.srv = name
		return t, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return target{}, errPort
	}
	t.port, t.host = uint16(n), name
	// _http._tcp.web:80: the SRV records first, and without them the host web with that port.
	if host, ok := serviceHost(name); ok {
		t.srv, t.host = name, host
	}
	return t, nil
}

// isPortless reports whether the target is a plain name such as "web", without a port and
// without the labels _service._proto of an SRV name. Such a target often lacks its port by
// mistake.
func (t target) isPortless() bool { return t.host == "" && !strings.HasPrefix(t.srv, "_") }

// noSRV returns the error for a target with neither a port nor SRV records, which advises to add
// a port.
func noSRV(name string) error {
	return fmt.Errorf("dns: resolve %q: no endpoints by SRV records: "+
		"a name without a port asks for SRV records; write %s:80 to ask for A and AAAA records", name, name)
}

// errPort is the error of a target with an invalid port.
var errPort = errors.New("the port is not a number from 1 to 65535")

// serviceHost returns the part of name that follows _service._proto. It returns false if
// name does not begin with such labels.
func serviceHost(name string) (host string, ok bool) {
	labels := strings.SplitN(name, ".", 3)
	// The name has at least two labels that begin with an underscore, and a rest.
	if len(labels) < 3 || labels[0][0] != '_' || labels[1][0] != '_' {
		return "", false
	}
	return labels[2], true
}

// cleanName returns a name in ASCII and lower case, without its final dot. Like net/http, it
// converts an internationalized name to its DNS form (xn--). It returns an error if s is not a
// valid name or contains characters that host and service names must not contain.
func cleanName(s string) (string, error) {
	s = strings.TrimSuffix(toASCII(s), ".")
	// After the conversion, because it is the ASCII form that is limited in length.
	if err := checkLabels(s); err != nil {
		return "", err
	}
	if i := strings.IndexFunc(s, notInName); i >= 0 {
		return "", fmt.Errorf("the name has a character other than a-z, 0-9, - and _ at %q", s[i:])
	}
	return strings.ToLower(s), nil
}

// toASCII converts an internationalized name. It returns other names unchanged.
func toASCII(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0 {
		return s
	}
	// A name that cannot be converted is rejected later, because of its characters.
	if ascii, err := idna.Lookup.ToASCII(s); err == nil {
		return ascii
	}
	return s
}

// checkLabels returns an error if s, a name without its final dot, is not valid in DNS (RFC
// 1035, section 2.3.4).
func checkLabels(s string) error {
	switch {
	case s == "":
		return errors.New("missing name")
	// RFC 1035 limits a name to 255 bytes, which include a length for each label and the root.
	case len(s) > 253:
		return fmt.Errorf("the name has %d characters; 253 are the most", len(s))
	}
	for label := range strings.SplitSeq(s, ".") {
		switch {
		case label == "":
			return errors.New("the name has an empty label")
		// A label's length has six bits in a message.
		case len(label) > 63:
			return fmt.Errorf("the label %q has %d characters; 63 are the most", label, len(label))
		}
	}
	return nil
}

// notInName reports whether c must not be in a host or service name.
func notInName(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		return false
	}
	return true
}
