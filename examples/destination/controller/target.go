package controller

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// target is a requested host and port in canonical form, so that equal names give equal targets.
type target struct {
	host string // lower case, without a trailing dot
	port uint16
	ip   bool // host is an IP address

	client Client // who asks
}

func (t target) String() string {
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

// defaultPort applies to a name without a port, as the API defines it.
const defaultPort = 80

// parseTarget parses host[:port], where host is a DNS name or an IP address. IP addresses are
// tried first, because an IPv6 address contains colons even without a port.
func parseTarget(s string) (target, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addrTarget(netip.AddrPortFrom(addr, defaultPort))
	}
	if addr, err := netip.ParseAddrPort(s); err == nil {
		return addrTarget(addr)
	}
	host, port, found := strings.Cut(s, ":")
	// A final dot only says that the name is complete.
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

// addrTarget returns the target for an IP address with its port. Port 0 is an error, and so is a
// zone, which means something only on the client's machine.
func addrTarget(addr netip.AddrPort) (target, error) {
	if addr.Port() == 0 {
		return target{}, fmt.Errorf("%q is not host:port: the port must not be 0", addr)
	}
	if addr.Addr().Zone() != "" {
		return target{}, fmt.Errorf("%q is not host:port: the address must not have a zone", addr)
	}
	return target{host: addr.Addr().Unmap().String(), port: addr.Port(), ip: true}, nil
}

// parsePort parses a port from 1 to 65535.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

// checkName returns an error unless s is a DNS name. Underscores are allowed. If the last label
// consists of digits, s is rejected as a probably mistyped IP address.
func checkName(s string) error {
	if s == "" {
		return errors.New("the name must not be empty")
	}
	// 253 characters is DNS's limit for a name.
	if len(s) > 253 {
		return fmt.Errorf("the name has %d characters, must have at most 253", len(s))
	}
	labels := strings.Split(s, ".")
	for _, label := range labels {
		if err := checkLabel(label); err != nil {
			return err
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return fmt.Errorf("%q is neither a name nor an IP address", s)
	}
	return nil
}

// checkLabel returns an error unless s is a DNS label: 1 to 63 letters, digits, hyphens and
// underscores, without a hyphen at either end.
func checkLabel(s string) error {
	switch {
	case s == "":
		return errors.New("a label is empty")
	// 63 characters is DNS's limit for a label.
	case len(s) > 63:
		return fmt.Errorf("%q must have at most 63 characters", s)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("%q must not begin or end with a hyphen", s)
	}
	for _, r := range s {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", r) {
			return fmt.Errorf("%q is not allowed in a name", r)
		}
	}
	return nil
}
