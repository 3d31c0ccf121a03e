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

// items splits s at commas. It removes surrounding spaces from each part, and leaves out
// empty parts.
func items(s string) []string {
	var parts []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func parseAddr(s string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, errors.New("must be ip:port")
	}
	return addr, nil
}

// parseAddrs parses one or two addresses, separated by a comma.
func parseAddrs(s string) ([]netip.AddrPort, error) {
	parts := strings.Split(s, ",")
	if len(parts) > 2 {
		return nil, errors.New("must be one ip:port or two")
	}
	var addrs []netip.AddrPort
	for _, part := range parts {
		addr, err := parseAddr(part)
		if err != nil {
			return nil, fmt.Errorf("%q %w", part, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parseHostPort validates name:port or ip:port with a port from 1 to 65535, and returns it
// unchanged.
func parseHostPort(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New("must be host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("must have a port from 1 to 65535")
	}
	if _, err := netip.ParseAddr(host); err != nil && !isName(host) {
		return "", fmt.Errorf("%q must be a DNS name or an address", host)
	}
	return s, nil
}

func parseSuffixes(s string) (Suffixes, error) {
	suffixes := Suffixes{}
	for _, part := range items(s) {
		if part == "." {
			suffixes = append(suffixes, "")
			continue
		}
		name, err := parseName(part)
		if err != nil {
			return nil, fmt.Errorf("%q must be a DNS name, or \".\" for all", part)
		}
		suffixes = append(suffixes, name)
	}
	return suffixes, nil
}

func parseNetworks(s string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, part := range items(s) {
		n, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("%q must be a network such as 10.0.0.0/8", part)
		}
		networks = append(networks, unmapPrefix(n.Masked()))
	}
	return networks, nil
}

// unmapPrefix converts an IPv4-mapped IPv6 network to IPv4. It is necessary because
// addresses are converted too before they are compared with networks.
func unmapPrefix(n netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before an address of IPv4
	if !n.Addr().Is4In6() || n.Bits() < mapped {
		return n
	}
	return netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-mapped)
}

// parseIPs parses IP addresses, separated by commas. For an empty text it returns nil,
// which means all addresses.
func parseIPs(s string) ([]netip.Addr, error) {
	if s == "" {
		return nil, nil
	}
	var ips []netip.Addr
	for part := range strings.SplitSeq(s, ",") {
		ip, err := netip.ParseAddr(part)
		if err != nil {
			return nil, fmt.Errorf("%q must be an address", part)
		}
		ips = append(ips, ip.Unmap())
	}
	return ips, nil
}

func parsePorts(s string) (Ports, error) {
	var ports Ports
	for _, part := range items(s) {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
		last, err2 := strconv.ParseUint(strings.TrimSpace(high), 10, 16)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("%q must be a port or a range low-high", part)
		}
		if last < first {
			return nil, fmt.Errorf("%q must begin with the lower port", part)
		}
		ports = append(ports, PortRange{uint16(first), uint16(last)})
	}
	return ports.joined(), nil
}

// joined sorts p and merges overlapping and adjacent ranges. It returns the result.
func (p Ports) joined() Ports {
	slices.SortFunc(p, func(a, b PortRange) int { return cmp.Compare(a.First, b.First) })
	var merged Ports
	for _, r := range p {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
		} else {
			merged = append(merged, r)
		}
	}
	return merged
}

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

// parseLabels parses labels in the form key=value,key=value.
func parseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	for _, part := range items(s) {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q must be key=value", part)
		}
		labels[key] = value
	}
	return labels, nil
}
