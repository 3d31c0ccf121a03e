package tcplayer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// TransportProtocol is what a client offers and a server picks in TLS (ALPN) to
// agree that a [TransportHeader] comes before everything else.
const TransportProtocol = "transport.l5d.io/v1"

// TransportHeader is what one proxy of a mesh says to another, inside TLS, of the
// connection that follows: where it is to go on to, and what is spoken on it.
type TransportHeader struct {
	// Port is that of the server that the connection is for, 1 to 65535.
	Port uint16

	// Name is that of the server, in DNS, for a gateway that is to find it. ""
	// means whoever is behind the peer, on the same address.
	Name string

	// Protocol is what is spoken on the connection. Opaque means that nothing is
	// known, or not to be looked at.
	Protocol Protocol
}

// NewTransportHeader returns the header of a connection to an endpoint whose
// address has that port, and whose authority is to be overridden with authority,
// "" if it is not: then the endpoint is a gateway, and the header has the name
// and the port of authority. An authority without a port says nothing, and one
// whose host is no name in DNS has no name, as in linkerd's proxy.
func NewTransportHeader(port uint16, authority string, p Protocol) TransportHeader {
	h := TransportHeader{Port: port, Protocol: p}
	host, text, err := net.SplitHostPort(authority)
	if err != nil {
		return h
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		h.Port = uint16(n)
		if dnsName(host) {
			h.Name = host
		}
	}
	return h
}

// Validate says why a peer would not read h, or returns nil.
func (h TransportHeader) Validate() error {
	switch {
	case h.Port == 0:
		return errors.New("the transport header has no port")
	case h.Name != "" && !dnsName(h.Name):
		return fmt.Errorf("the transport header's %q is no name in DNS", h.Name)
	}
	return nil
}

const (
	headerPreface = TransportProtocol + "\r\n\r\n"
	headerFixed   = len(headerPreface) + 4 // and its length

	// mostHeader bounds what is held of a peer for its header, as linkerd's
	// proxy does.
	mostHeader = 64 << 10
)

// The fields of message Header, of its SessionProtocol, and of nothing else.
const (
	portField     = 1
	nameField     = 2
	protocolField = 3
	http1Field    = 1
	http2Field    = 2
)

// AppendTo appends h as it goes over the wire: a preface, a length, and a message
// in protobuf. A header that is not valid is appended as well.
func (h TransportHeader) AppendTo(b []byte) []byte {
	b = append(b, headerPreface...)
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	if h.Port != 0 {
		b = protowire.AppendTag(b, portField, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(h.Port))
	}
	if h.Name != "" {
		b = protowire.AppendTag(b, nameField, protowire.BytesType)
		b = protowire.AppendString(b, h.Name)
	}
	switch h.Protocol {
	case HTTP1:
		b = appendSession(b, http1Field)
	case HTTP2:
		b = appendSession(b, http2Field)
	case Opaque:
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// appendSession appends a SessionProtocol in which there is an empty message.
func appendSession(b []byte, kind protowire.Number) []byte {
	b = protowire.AppendTag(b, protocolField, protowire.BytesType)
	b = protowire.AppendVarint(b, 2)
	b = protowire.AppendTag(b, kind, protowire.BytesType)
	return protowire.AppendVarint(b, 0)
}

// ErrNoTransportHeader says of first bytes that they do not begin with a
// [TransportHeader].
var ErrNoTransportHeader = errors.New("no transport header")

// ParseTransportHeader reads the header that first begins with, and says how many
// bytes that is. The error is [io.ErrUnexpectedEOF] if more is needed to tell,
// [ErrNoTransportHeader] for anything that does not begin as a header does, and
// another one for a header that is wrong: longer than 64 KiB, not protobuf,
// without a port from 1 to 65535, or with a name that is none in DNS. It does not
// keep first.
func ParseTransportHeader(first []byte) (h TransportHeader, size int, err error) {
	if !begins(first, headerPreface) {
		return TransportHeader{}, 0, ErrNoTransportHeader
	}
	if len(first) < headerFixed {
		return TransportHeader{}, 0, io.ErrUnexpectedEOF
	}
	length := binary.BigEndian.Uint32(first[len(headerPreface):])
	if length > mostHeader {
		return TransportHeader{}, 0, fmt.Errorf("a transport header of %d bytes, more than %d", length, mostHeader)
	}
	size = headerFixed + int(length)
	if len(first) < size {
		return TransportHeader{}, 0, io.ErrUnexpectedEOF
	}
	h, err = parseHeaderMessage(first[headerFixed:size])
	if err != nil {
		return TransportHeader{}, 0, fmt.Errorf("transport header: %w", err)
	}
	return h, size, nil
}
