package settings

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// items splits s at commas, and drops empty parts and surrounding spaces.
func items(s string) []string {
	var parts []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			parts = append(parts, item)
		}
	}
	return parts
}

// parseAddr parses an IP address with a port, such as 127.0.0.1:4140.
func parseAddr(s string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, errors.New("must be ip:port, such as 127.0.0.1:4140")
	}
	return addr, nil
}

// parseAddrs parses one or two comma-separated addresses.
func parseAddrs(s string) ([]netip.AddrPort, error) {
	// A proxy may listen on an IPv4 and an IPv6 address.
	parts := strings.Split(s, ",")
	if len(parts) > 2 {
		return nil, errors.New("must be one ip:port or two")
	}
	var addrs []netip.AddrPort
	for _, item := range parts {
		addr, err := parseAddr(item)
		if err != nil {
			return nil, fmt.Errorf("%q %w", item, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parseHostPort validates name:port or ip:port and returns it unchanged. The port is at least 1.
func parseHostPort(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New("must be host:port, such as 127.0.0.1:8086")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("must have a port from 1 to 65535")
	}
	// The host is either an address or a name.
	if _, err := netip.ParseAddr(host); err != nil && !isName(host) {
		return "", fmt.Errorf("%q must be a DNS name or an address", host)
	}
	return s, nil
}

// parseSuffixes parses comma-separated DNS names. "." stands for all names, and an empty text for none.
func parseSuffixes(s string) (Suffixes, error) {
	suffixes := Suffixes{}
	for _, item := range items(s) {
		if item == "." {
			// The empty suffix matches all names.
			suffixes = append(suffixes, "")
			continue
		}
		name, err := parseName(item)
		if err != nil {
			return nil, fmt.Errorf("%q must be a DNS name, or \".\" for all", item)
		}
		suffixes = append(suffixes, name)
	}
	return suffixes, nil
}

// parseNetworks parses comma-separated networks such as 10.0.0.0/8.
func parseNetworks(s string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, item := range items(s) {
		n, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q must be a network such as 10.0.0.0/8", item)
		}
		networks = append(networks, unmapPrefix(n.Masked()))
	}
	return networks, nil
}

// unmapPrefix converts an IPv4-mapped IPv6 network to IPv4. Addresses are converted too before they
// are compared with networks.
func unmapPrefix(n netip.Prefix) netip.Prefix {
	const mapped = 96 // the bits that precede the IPv4 address
	if !n.Addr().Is4In6() || n.Bits() < mapped {
		return n
	}
	return netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-mapped)
}

// parseIPs parses comma-separated IP addresses. An empty text means all addresses, for which it
// returns nil.
func parseIPs(s string) ([]netip.Addr, error) {
	if s == "" {
		return nil, nil
	}
	var ips []netip.Addr
	for item := range strings.SplitSeq(s, ",") {
		ip, err := netip.ParseAddr(item)
		if err != nil {
			return nil, fmt.Errorf("%q must be an address", item)
		}
		// Connections have IPv4 addresses in their short form.
		ips = append(ips, ip.Unmap())
	}
	return ips, nil
}

// parsePorts parses comma-separated ports and ranges of ports, such as 25,8080-8090.
func parsePorts(s string) (Ports, error) {
	var ports Ports
	for _, item := range items(s) {
		low, high, isRange := strings.Cut(item, "-")
		// A single port is a range of one.
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
		last, err2 := strconv.ParseUint(strings.TrimSpace(high), 10, 16)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("%q must be a port or a range low-high", item)
		}
		if last < first {
			return nil, fmt.Errorf("%q must begin with the lower port", item)
		}
		ports = append(ports, PortRange{uint16(first), uint16(last)})
	}
	return ports.joined(), nil
}

// joined sorts p and merges ranges that overlap or touch.
func (p Ports) joined() Ports {
	slices.SortFunc(p, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	var merged Ports
	for _, r := range p {
		// One above the last port touches the range. The sum is an int, because it may exceed 65535.
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
		} else {
			merged = append(merged, r)
		}
	}
	return merged
}

// parseOrigin parses how original destinations are found: redirected, proxy-protocol or fixed:ip:port.
func parseOrigin(s string) (Origin, error) {
	switch rest, fixed := strings.CutPrefix(s, "fixed:"); {
	case s == "redirected":
		return Origin{Kind: Redirected}, nil
	case s == "proxy-protocol":
		return Origin{Kind: ProxyProtocol}, nil
	case fixed:
		addr, err := parseAddr(rest)
		if err != nil || addr.Port() == 0 {
			return Origin{}, errors.New("must have ip:port after fixed, as in fixed:127.0.0.1:8080")
		}
		return Origin{Kind: Fixed, Addr: addr}, nil
	}
	return Origin{}, errors.New("must be redirected, proxy-protocol or fixed:ip:port")
}

// parseLabels parses key=value,key=value.
func parseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	for _, item := range items(s) {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q must be key=value", item)
		}
		labels[key] = value
	}
	return labels, nil
}
