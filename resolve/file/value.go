package file

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gotower/gotower/resolve"
)

// parseAddr takes an IPv4 address in IPv6 form for the IPv4 address it is.
func parseAddr(text string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(text)
	_, bare := netip.ParseAddr(text)
	switch {
	case bare == nil:
		return netip.AddrPort{}, errors.New("no port: write 10.0.0.1:80 or [fd00::1]:80")
	case err != nil:
		return netip.AddrPort{}, errors.New("not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80")
	case addr.Port() == 0:
		return netip.AddrPort{}, errors.New("port 0 cannot be connected to: write 1 to 65535")
	case addr.Addr().Unmap().WithZone("").IsUnspecified():
		return netip.AddrPort{}, errors.New("the unspecified address is for listening: write the address to connect to")
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), nil
}

func parseWeight(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil:
		return 0, errors.New("write a whole number from 1 to 4294967295; 10000 is one unit")
	case n == 0:
		return 0, errors.New("leave the weight out for the usual share, or the endpoint out for none")
	}
	return uint32(n), nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("not a port: write 1 to 65535")
	}
	return uint16(n), nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("write a duration such as 300ms or 10s")
	}
	return d, nil
}

func parseProtocol(text string) (p resolve.Protocol, err error) {
	if p.UnmarshalText([]byte(text)) != nil {
		err = errors.New("write h2, opaque or unknown")
	}
	return p, err
}

// parseWord takes whatever a peer's certificate may say, but for what is
// certainly a slip.
func parseWord(text string) (string, error) {
	slip := func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }
	if strings.ContainsFunc(text, slip) {
		return "", errors.New("white space or a control character in it: take it out")
	}
	return text, nil
}

// parseAuthority takes host, host:port and [address]:port.
func parseAuthority(text string) (string, error) {
	if strings.ContainsAny(text, "/@?#") {
		return "", errors.New("write host:port alone, without a scheme, user or path")
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		_, err = parsePort(port)
	}
	_, bare := netip.ParseAddr(strings.Trim(text, "[]"))
	if strings.Contains(text, ":") && bare != nil && (err != nil || host == "") {
		return "", errors.New("write host:port, with a port from 1 to 65535")
	}
	return parseWord(text)
}
