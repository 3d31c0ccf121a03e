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

// ProxyProtocol returns the [Origin] for connections from a load balancer that uses the PROXY
// protocol, version 1 or 2. The load balancer first sends a header with the client's and the
// destination's addresses. A header without addresses (LOCAL, UNKNOWN, UNSPEC, a Unix socket), as
// for health checks, keeps the connection's addresses.
//
// A connection without a header is an error, unless [WithSkipDetect] excludes the connection. You
// should let only trusted peers reach the listener, because the header is not authenticated. The
// header must arrive within 10 s ([WithDetectTimeout]) and may be up to 4,096 bytes long. TLV
// fields are ignored.
func ProxyProtocol(opts ...DetectOption) Origin {
	o := newDetectOptions(opts)
	return func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		if o.skips(ctx, conn) {
			return conn, nil
		}
		// whole tells the peek to stop at the end of the header, or as soon as the bytes cannot be a header.
		whole := func(data []byte) bool {
			_, err := parseProxyHeader(data)
			return !errors.Is(err, io.ErrUnexpectedEOF)
		}
		first, next, err := peekFirst(ctx, conn, peekSpec{max: maxProxyHeader, timeout: o.timeout, enough: whole})
		// The client has sent less than a header, and this is no normal end.
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("PROXY protocol: %w", err)
		}
		h, err := parseProxyHeader(first)
		if err == nil {
			// The peek has left the header in the connection. It must be taken out before the server
			// reads.
			_, err = io.ReadFull(next, make([]byte, h.size))
		}
		if err != nil {
			return nil, fmt.Errorf("PROXY protocol: %w", err)
		}
		f := newBufferedConn(next)
		// The header was taken from the connection, so no other server can read it.
		f.consumed = true
		// Without addresses in the header, those of the connection stay.
		if h.client.IsValid() {
			f.client, f.server = net.TCPAddrFromAddrPort(h.client), net.TCPAddrFromAddrPort(h.server)
		}
		return f, nil
	}
}

// WithProxyHeader makes an [Endpoint] send a header of the PROXY protocol before all other bytes, also
// before a TLS handshake. The header has the addresses of the [Request], so that the server behind the
// Endpoint knows the client. A request without the address of a client, such as a health check or a probe of
// Ready, has a header without addresses. The version is 1 or 2. Another version panics.
func WithProxyHeader(version int) EndpointOption {
	encode := map[int]func(client, server netip.AddrPort) []byte{1: encodeProxyV1, 2: encodeProxyV2}[version]
	if encode == nil {
		panic(fmt.Sprintf("tcplayer: WithProxyHeader: version %d: must be 1 or 2", version))
	}
	return endpointOption(func(o *endpointOptions) { o.proxyHeader = encode })
}

// sameFamily returns both addresses as IPv4 addresses, or both as IPv6 addresses. An unknown address of
// the server is the unspecified address.
func sameFamily(client, server netip.AddrPort) (clientAddr, serverAddr netip.Addr) {
	// The header has no place for a zone.
	clientAddr, serverAddr = client.Addr().Unmap().WithZone(""), server.Addr().Unmap().WithZone("")
	switch {
	case !serverAddr.IsValid() && clientAddr.Is4():
		return clientAddr, netip.IPv4Unspecified()
	case !serverAddr.IsValid():
		return clientAddr, netip.IPv6Unspecified()
	case clientAddr.Is4() == serverAddr.Is4():
		return clientAddr, serverAddr
	}
	// One address is IPv4 and the other IPv6: the IPv4 address is mapped to IPv6.
	return netip.AddrFrom16(clientAddr.As16()), netip.AddrFrom16(serverAddr.As16())
}

// encodeProxyV2 returns the binary form of the header. It is a LOCAL header if client is invalid.
func encodeProxyV2(client, server netip.AddrPort) []byte {
	if !client.Addr().IsValid() {
		return append([]byte(proxyV2), proxyV2Local, proxyV2Unspec, 0, 0)
	}
	src, dst := sameFamily(client, server)
	// The size of the addresses and of two ports of two bytes each.
	family, size := byte(proxyV2TCP4), 2*net.IPv4len+4
	if src.Is6() {
		family, size = proxyV2TCP6, 2*net.IPv6len+4
	}
	b := append([]byte(proxyV2), proxyV2Proxy, family, 0, byte(size))
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	// The order is that of the specification: both addresses, then both ports.
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, client.Port()), server.Port())
}

// encodeProxyV1 returns the text form of the header. Its family is UNKNOWN if client is invalid.
func encodeProxyV1(client, server netip.AddrPort) []byte {
	// Without addresses, the header only says that there is a proxy.
	if !client.Addr().IsValid() {
		return []byte(proxyV1 + "UNKNOWN\r\n")
	}
	// Both addresses must be of one family.
	src, dst := sameFamily(client, server)
	family := "TCP4"
	if src.Is6() {
		family = "TCP6"
	}
	return fmt.Appendf(nil, "%s%s %s %s %d %d\r\n", proxyV1, family, src, dst, client.Port(), server.Port())
}

// maxProxyHeader is the maximum size of a header in bytes. It limits the memory for a
// client that has not sent a valid header.
const maxProxyHeader = 4 << 10

// proxyHeader is a decoded PROXY protocol header. If it names no addresses, client and server are
// invalid.
type proxyHeader struct {
	client, server netip.AddrPort
	size           int // length of the encoded header in bytes
}

// errNoProxyHeader reports that the first bytes cannot be a PROXY header.
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

// The binary form of the header. The names are those of the specification.
const (
	proxyV2      = "\r\n\r\n\x00\r\nQUIT\n"
	proxyV2Fixed = len(proxyV2) + 4 // signature, command, family and two bytes of length

	proxyV2Local  = 0x20 // version 2 and the command LOCAL
	proxyV2Proxy  = 0x21 // version 2 and the command PROXY
	proxyV2Unspec = 0x00
	proxyV2TCP4   = 0x11 // IPv4 and stream
	proxyV2TCP6   = 0x21 // IPv6 and stream
	proxyV2Unix   = 0x31 // a Unix socket and stream
)

// parseProxyV2 decodes the header's binary form (section 2.2 of the specification).
func parseProxyV2(b []byte) (proxyHeader, error) {
	if len(b) < proxyV2Fixed {
		return proxyHeader{}, io.ErrUnexpectedEOF
	}
	command := b[len(proxyV2)]
	family := b[len(proxyV2)+1]
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
	// The connection is from the load balancer itself, so the addresses do not matter.
	if command == proxyV2Local {
		return h, nil
	}
	body := b[proxyV2Fixed:h.size]
	switch family {
	// Families without IP addresses are allowed by the specification and ignored.
	case proxyV2Unspec, proxyV2Unix:
		return h, nil
	case proxyV2TCP4:
		return h.withAddresses(body, net.IPv4len)
	case proxyV2TCP6:
		return h.withAddresses(body, net.IPv6len)
	}
	return proxyHeader{}, fmt.Errorf("address family and transport %#02x", family)
}

// withAddresses returns h with the addresses in body, which begins with the IP addresses of the
// client and the server, each width bytes long, and continues with their ports.
func (h proxyHeader) withAddresses(body []byte, width int) (proxyHeader, error) {
	// Two addresses and two ports of two bytes each.
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

// The text form of the header.
const (
	proxyV1     = "PROXY "
	proxyV1Line = 107 // maximum length of a line, with CR LF
)

// parseProxyV1 decodes the header's text form (section 2.1 of the specification):
//
//	PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n
func parseProxyV1(b []byte) (proxyHeader, error) {
	// A longer line is invalid, whatever follows.
	b = b[:min(len(b), proxyV1Line)]
	end := bytes.IndexByte(b, '\n')
	switch {
	// More bytes may complete the line.
	case end < 0 && len(b) < proxyV1Line:
		return proxyHeader{}, io.ErrUnexpectedEOF
	case end < 1 || b[end-1] != '\r':
		return proxyHeader{}, fmt.Errorf("a line of version 1 must end with CR LF within %d bytes", proxyV1Line)
	}
	line := string(b[:end-1])
	h := proxyHeader{size: end + 1}
	fields := strings.Split(line, " ")
	// fields[1] exists, because the line begins with proxyV1, which ends in a blank.
	switch family := fields[1]; {
	case family == "UNKNOWN":
		return h, nil
	case family != "TCP4" && family != "TCP6" || len(fields) != 6:
		return proxyHeader{}, fmt.Errorf("unknown line of version 1: %q", line)
	}
	src := fields[2:4]
	dst := fields[4:6]
	// Both addresses are parsed, so that the error names all problems.
	var err [2]error
	h.client, err[0] = proxyV1Address(fields[1], src[0], dst[0])
	h.server, err[1] = proxyV1Address(fields[1], src[1], dst[1])
	if err := errors.Join(err[:]...); err != nil {
		return proxyHeader{}, fmt.Errorf("%q: %w", line, err)
	}
	return h, nil
}

// proxyV1Address parses an address and a port as the text form allows them.
func proxyV1Address(family, ip, port string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if addr.Is4() != (family == "TCP4") || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%s must be an address of %s", ip, family)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	// Only one spelling of a number is allowed, so no leading zero.
	if err != nil || strconv.FormatUint(n, 10) != port {
		return netip.AddrPort{}, fmt.Errorf("%s must be a port", port)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
