package tcplayer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// ProxyProtocol returns the [Origin] for connections from a load balancer that uses the
// PROXY protocol, version 1 or 2. The load balancer first sends a header with the addresses
// of the client and of the destination. A header without addresses (LOCAL, UNKNOWN, UNSPEC,
// a Unix socket), as for health checks, keeps the addresses of the connection.
//
// A connection without a header is an error, unless [WithSkipDetect] excludes the
// connection. Only trusted peers should reach the listener, because the header is not
// authenticated. The header must arrive within 10 s ([WithDetectTimeout]) and may have up
// to 4,096 bytes. TLV fields are ignored.
func ProxyProtocol(opts ...DetectOption) Origin {
	o := newDetectOptions(opts)
	return func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		if o.skips(ctx, conn) {
			return conn, nil
		}
		whole := func(seen []byte) bool {
			_, err := parseProxyHeader(seen)
			return !errors.Is(err, io.ErrUnexpectedEOF)
		}
		first, next, err := peekFirst(ctx, conn, peekSpec{max: maxProxyHeader, within: o.timeout, enough: whole})
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("PROXY protocol: %w", err)
		}
		h, err := parseProxyHeader(first)
		if err == nil {
			_, err = io.ReadFull(next, make([]byte, h.size))
		}
		if err != nil {
			return nil, fmt.Errorf("PROXY protocol: %w", err)
		}
		f := newBufferedConn(next)
		f.took = true
		if h.client.IsValid() {
			f.client, f.server = net.TCPAddrFromAddrPort(h.client), net.TCPAddrFromAddrPort(h.server)
		}
		return f, nil
	}
}

// maxProxyHeader is the maximum size of a header in bytes. It limits the memory for a
// client that has not sent a valid header.
const maxProxyHeader = 4 << 10

// proxyHeader is a decoded header of the PROXY protocol. If the header has no addresses,
// client and server are invalid.
type proxyHeader struct {
	client, server netip.AddrPort
	size           int // length of the encoded header in bytes
}

var errNoProxyHeader = errors.New("header is missing")

// parseProxyHeader decodes the header at the start of b. The error is io.ErrUnexpectedEOF
// if more bytes are needed, and errNoProxyHeader if the bytes are not a header.
func parseProxyHeader(b []byte) (proxyHeader, error) {
	switch {
	case hasPrefixSoFar(b, proxyV1):
		return parseProxyV1(b)
	case hasPrefixSoFar(b, proxyV2):
		return parseProxyV2(b)
	}
	return proxyHeader{}, errNoProxyHeader
}

// hasPrefixSoFar reports whether b begins with s. If b is shorter than s, it reports
// whether s begins with b.
func hasPrefixSoFar(b []byte, s string) bool {
	n := min(len(b), len(s))
	return string(b[:n]) == s[:n]
}

const (
	proxyV2      = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV2Fixed = len(proxyV2) + 4 // signature, command, family and two bytes of length

	proxyV2Local  = 0x20
	proxyV2Proxy  = 0x21
	proxyV2Unspec = 0x00
	proxyV2TCP4   = 0x11
	proxyV2TCP6   = 0x21
	proxyV2Unix   = 0x31
)

// parseProxyV2 decodes the binary form of the header (section 2.2 of the specification).
func parseProxyV2(b []byte) (proxyHeader, error) {
	if len(b) < proxyV2Fixed {
		return proxyHeader{}, io.ErrUnexpectedEOF
	}
	command, family := b[len(proxyV2)], b[len(proxyV2)+1]
	if command != proxyV2Local && command != proxyV2Proxy {
		return proxyHeader{}, fmt.Errorf("version and command %#02x", command)
	}
	length := int(binary.BigEndian.Uint16(b[len(proxyV2)+2:]))
	h := proxyHeader{size: proxyV2Fixed + length}
	if h.size > maxProxyHeader {
		return proxyHeader{}, fmt.Errorf("header has %d bytes, limit %d", h.size, maxProxyHeader)
	}
	if len(b) < h.size {
		return proxyHeader{}, io.ErrUnexpectedEOF
	}
	if command == proxyV2Local {
		return h, nil
	}
	body := b[proxyV2Fixed:h.size]
	switch family {
	case proxyV2Unspec, proxyV2Unix:
		return h, nil
	case proxyV2TCP4:
		return h.withAddresses(body, net.IPv4len)
	case proxyV2TCP6:
		return h.withAddresses(body, net.IPv6len)
	}
	return proxyHeader{}, fmt.Errorf("address family and transport %#02x", family)
}

// withAddresses returns h with the addresses in body. The body begins with the IP addresses of the
// client and the server. The argument width is the length of each in bytes. Their ports follow.
func (h proxyHeader) withAddresses(body []byte, width int) (proxyHeader, error) {
	if len(body) < 2*width+4 {
		return proxyHeader{}, fmt.Errorf("%d bytes are too few for two addresses", len(body))
	}
	client, _ := netip.AddrFromSlice(body[:width])
	server, _ := netip.AddrFromSlice(body[width : 2*width])
	ports := body[2*width:]
	h.client = netip.AddrPortFrom(client.Unmap(), binary.BigEndian.Uint16(ports))
	h.server = netip.AddrPortFrom(server.Unmap(), binary.BigEndian.Uint16(ports[2:]))
	return h, nil
}

const (
	proxyV1     = "PROXY "
	proxyV1Line = 107 // maximum length of a line, with CR LF
)

// parseProxyV1 decodes the text form of the header (section 2.1 of the specification):
//
//	PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n
func parseProxyV1(b []byte) (proxyHeader, error) {
	b = b[:min(len(b), proxyV1Line)]
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0 && len(b) < proxyV1Line:
		return proxyHeader{}, io.ErrUnexpectedEOF
	case end < 1 || b[end-1] != '\r':
		return proxyHeader{}, fmt.Errorf("a line of version 1 must end with CR LF within %d bytes", proxyV1Line)
	}
	line := string(b[:end-1])
	h := proxyHeader{size: end + 1}
	fields := strings.Split(line, " ")
	switch family := fields[1]; {
	case family == "UNKNOWN":
		return h, nil
	case family != "TCP4" && family != "TCP6" || len(fields) != 6:
		return proxyHeader{}, fmt.Errorf("unknown line of version 1: %q", line)
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
		return netip.AddrPort{}, fmt.Errorf("%s must be an address of %s", ip, family)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != port {
		return netip.AddrPort{}, fmt.Errorf("%s must be a port", port)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
