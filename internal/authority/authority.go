// Package authority parses the authority of a request and an endpoint's address.
package authority

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Valid reports whether s is a valid authority: a name or an IP address, with or without a
// port, such as "web", "web:80", "10.0.0.1:80" or "[::1]".
func Valid(s string) bool {
	host := s
	if h, port, err := net.SplitHostPort(s); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
		host = h
		// SplitHostPort has removed the brackets, which only an IPv6 address may have.
		if strings.HasPrefix(s, "[") {
			host = "[" + h + "]"
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		return closed && err == nil && addr.Is6() && addr.Zone() == ""
	}
	return host != "" && !strings.ContainsFunc(host, func(c rune) bool { return !isNameChar(c) })
}

// CutPort splits s into host and port at its last colon. Without a colon, host is s and
// found is false.
func CutPort(s string) (host, port string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// Domain returns the domain in a name of SRV records, _service._proto.domain (RFC
// 2782). It returns any other name unchanged.
func Domain(name string) string {
	service, rest, _ := strings.Cut(name, ".")
	proto, domain, _ := strings.Cut(rest, ".")
	if strings.HasPrefix(service, "_") && strings.HasPrefix(proto, "_") && domain != "" {
		return domain
	}
	return name
}

// IsOwn reports whether s, the value of a Host header, is localhost, an IP address or one of
// names, with or without a port. A server that rejects other names prevents DNS rebinding, by
// which a page makes its own name resolve to the server's address.
func IsOwn(s string, names []string) bool {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.ToLower(strings.TrimSuffix(strings.Trim(s, "[]"), "."))
	_, err := netip.ParseAddr(s)
	return err == nil || s == "localhost" || strings.HasSuffix(s, ".localhost") ||
		slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, s) })
}

// AddrPort parses an endpoint's address, such as "10.0.0.1:80". It converts an IPv4-mapped IPv6
// address to IPv4.
func AddrPort(s string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(s)
	_, bare := netip.ParseAddr(s)
	ip := addr.Addr().Unmap()
	// bare is nil if s is an IP address without a port.
	switch {
	case bare == nil:
		return netip.AddrPort{}, errors.New("no port: write 10.0.0.1:80 or [fd00::1]:80")
	case err != nil:
		return netip.AddrPort{}, errors.New("not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80")
	case addr.Port() == 0:
		return netip.AddrPort{}, errors.New("port 0 cannot be connected to: write 1 to 65535")
	case ip.WithZone("").IsUnspecified():
		return netip.AddrPort{}, errors.New("the unspecified address is for listening: write the address to connect to")
	}
	return netip.AddrPortFrom(ip, addr.Port()), nil
}

// isNameChar reports whether c may be part of a registered name (RFC 3986, section 3.2.2).
// It returns false for "(),;=", which are separators in other fields, and for "%", which
// can encode any character.
func isNameChar(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c != 0 && strings.ContainsRune("!$&'*+-._~", c)
}
