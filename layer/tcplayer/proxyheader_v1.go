package tcplayer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

const (
	proxyV1     = "PROXY "
	proxyV1Line = 107 // its longest line, with CR LF
)

// parseProxyV1 reads the form for people (2.1 of the specification):
//
//	PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n
func parseProxyV1(b []byte) (proxyHeader, error) {
	b = b[:min(len(b), proxyV1Line)]
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0 && len(b) < proxyV1Line:
		return proxyHeader{}, io.ErrUnexpectedEOF
	case end < 1 || b[end-1] != '\r':
		return proxyHeader{}, fmt.Errorf("a line of version 1 ends with CR LF within %d bytes", proxyV1Line)
	}
	line := string(b[:end-1])
	h := proxyHeader{size: end + 1}
	fields := strings.Split(line, " ")
	switch family := fields[1]; {
	case family == "UNKNOWN":
		return h, nil
	case family != "TCP4" && family != "TCP6" || len(fields) != 6:
		return proxyHeader{}, fmt.Errorf("a line of version 1 that is not understood: %q", line)
	}
	from, to := fields[2:4], fields[4:6]
	var err [2]error
	h.client, err[0] = proxyV1Address(fields[1], from[0], to[0])
	h.server, err[1] = proxyV1Address(fields[1], from[1], to[1])
	if err := errors.Join(err[:]...); err != nil {
		return proxyHeader{}, fmt.Errorf("%q: %w", line, err)
	}
	return h, nil
}

func proxyV1Address(family, ip, port string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if addr.Is4() != (family == "TCP4") || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%s is no address of %s", ip, family)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != port {
		return netip.AddrPort{}, fmt.Errorf("%s is no port", port)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
