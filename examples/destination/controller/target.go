package controller

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// target is what a client asks for, in one spelling.
type target struct {
	host string // lower case, without a trailing dot
	port uint16
	ip   bool
}

func (t target) String() string {
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

// defaultPort is what the API defines for a path without a port.
const defaultPort = 80

// parseTarget reads host[:port] in any spelling. Addresses come first: an IPv6
// address without a port has colons too.
func parseTarget(s string) (target, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addrTarget(netip.AddrPortFrom(addr, defaultPort))
	}
	if addr, err := netip.ParseAddrPort(s); err == nil {
		return addrTarget(addr)
	}
	host, port, found := strings.Cut(s, ":")
	t := target{host: strings.ToLower(strings.TrimSuffix(host, ".")), port: defaultPort}
	if found {
		n, err := parsePort(port)
		if err != nil {
			return target{}, fmt.Errorf("%q is not host:port: %w", s, err)
		}
		t.port = n
	}
	if err := checkName(t.host); err != nil {
		return target{}, fmt.Errorf("%q is not host:port: %w", s, err)
	}
	return t, nil
}

// addrTarget refuses a zone: it is another machine's.
func addrTarget(addr netip.AddrPort) (target, error) {
	if addr.Port() == 0 {
		return target{}, fmt.Errorf("%q is not host:port: the port is 0", addr)
	}
	if addr.Addr().Zone() != "" {
		return target{}, fmt.Errorf("%q is not host:port: an address with a zone", addr)
	}
	return target{host: addr.Addr().Unmap().String(), port: addr.Port(), ip: true}, nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

// checkName takes what DNS takes, and underscores. A name whose last label is
// a number is refused: it is a mistyped IP address.
func checkName(s string) error {
	if s == "" {
		return errors.New("the name is empty")
	}
	if len(s) > 253 {
		return fmt.Errorf("the name has %d characters, more than 253", len(s))
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if err := checkLabel(label); err != nil {
			return fmt.Errorf("name %q: %w", s, err)
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return fmt.Errorf("name %q is neither a name nor an IP address", s)
	}
	return nil
}

// checkLabel checks what stands between two dots.
func checkLabel(s string) error {
	switch {
	case s == "":
		return errors.New("nothing between two dots, or before or after one")
	case len(s) > 63:
		return fmt.Errorf("%q has more than 63 characters", s)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("%q begins or ends with a hyphen", s)
	}
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", r) {
			return fmt.Errorf("%q is not allowed in a name", r)
		}
	}
	return nil
}
