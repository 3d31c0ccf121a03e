package tcplayer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gotower/gotower/internal/caller"
	"github.com/gotower/gotower/layer"
)

// TransportProtocol is the ALPN protocol by which client and server agree to
// send a [TransportHeader] first.
const TransportProtocol = "transport.l5d.io/v1"

// TransportHeader describes the following connection to the proxy of the peer.
// It is sent inside TLS.
type TransportHeader struct {
	// Port is the port of the server, 1 to 65535.
	Port uint16

	// Name is the DNS name of the server, for a gateway. "" means the server
	// behind the peer, at the same address.
	Name string

	// Protocol is the protocol of the connection. Opaque means unknown.
	Protocol Protocol
}

// NewTransportHeader returns the header of a connection to an endpoint with
// that port. A non-empty authority, "name:port", makes the endpoint a gateway:
// the header gets its name and port. As in linkerd's proxy, an authority
// without a port is ignored, and a host that is not a DNS name is omitted.
func NewTransportHeader(port uint16, authority string, p Protocol) TransportHeader {
	h := TransportHeader{Port: port, Protocol: p}
	host, text, err := net.SplitHostPort(authority)
	if err != nil {
		return h
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		h.Port = uint16(n)
		if isDNSName(host) {
			h.Name = host
		}
	}
	return h
}

// Validate returns an error if a peer would reject h.
func (h TransportHeader) Validate() error {
	switch {
	case h.Port == 0:
		return errors.New("transport header without a port")
	case h.Name != "" && !isDNSName(h.Name):
		return fmt.Errorf("transport header name %q must be a DNS name", h.Name)
	}
	return nil
}

const (
	headerPreface = TransportProtocol + "\r\n\r\n"
	headerFixed   = len(headerPreface) + 4 // preface and length

	// maxHeader is the limit of linkerd's proxy.
	maxHeader = 64 << 10
)

// Field numbers of the messages Header and SessionProtocol.
const (
	portField     = 1
	nameField     = 2
	protocolField = 3
	http1Field    = 1
	http2Field    = 2
)

// AppendTo appends the encoded header: a preface, a length and a protobuf
// message. It does not call Validate.
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

// appendSession appends a SessionProtocol with an empty message.
func appendSession(b []byte, kind protowire.Number) []byte {
	b = protowire.AppendTag(b, protocolField, protowire.BytesType)
	b = protowire.AppendVarint(b, 2)
	b = protowire.AppendTag(b, kind, protowire.BytesType)
	return protowire.AppendVarint(b, 0)
}

// errNoTransportHeader reports first bytes without a [TransportHeader].
var errNoTransportHeader = errors.New("no transport header")

// parseTransportHeader returns the header at the start of first, and its size. The error is
// [io.ErrUnexpectedEOF] if more bytes are needed, [errNoTransportHeader] for other first bytes,
// and another error for an invalid header.
func parseTransportHeader(first []byte) (h TransportHeader, size int, err error) {
	if !hasPrefixSoFar(first, headerPreface) {
		return TransportHeader{}, 0, errNoTransportHeader
	}
	if len(first) < headerFixed {
		return TransportHeader{}, 0, io.ErrUnexpectedEOF
	}
	length := binary.BigEndian.Uint32(first[len(headerPreface):])
	if length > maxHeader {
		return TransportHeader{}, 0, fmt.Errorf("transport header has %d bytes, limit %d", length, maxHeader)
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

// TransportServers are the servers of [DetectTransport]. If one is nil, its
// connections are reset.
type TransportServers struct {
	Header Server // connections with a transport header, which is removed
	None   Server // other connections, unchanged
}

// DetectTransport returns a [Server] that reads the [TransportHeader] of each
// connection if its TLS negotiated [TransportProtocol]; see [DetectTLS]. It passes the
// rest to Header, which gets the header from [TransportHeaderFromContext]. The port of
// a header without a name becomes that of LocalAddr and [OriginalDst], so that
// [Forward] connects to it. Other connections go unread to None.
//
// A client that sends too little in 10 s ([WithDetectTimeout]) is reset. A header has
// up to 64 KiB. The identity of the client is not checked, see [TLSState].
//
// Admission: the chosen server decides. A rejected connection stays open if no byte was
// read; otherwise it is reset, as in [Detect]. Ready waits until one server is ready.
//
// Cancellation: ctx also ends the detection, and the connection is reset. Body: a read
// deadline is removed. Cost: about 2 KiB in 14 allocations, and 8 µs.
//
// Errors: errors of the server are returned unchanged. Other errors are a [layer.Error]
// with [layer.ErrTimeout], [layer.ErrNoRoute], [io.ErrUnexpectedEOF] or the error of an
// invalid header.
func DetectTransport(to TransportServers, opts ...DetectOption) Server {
	return &detectTransport{choice: newChoice(to.Header, to.None), detectOptions: newDetectOptions(opts), to: to}
}

type detectTransport struct {
	choice
	detectOptions
	to TransportServers
}

func (d *detectTransport) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "transport")
	case !hasHeader(conn) || d.skips(ctx, conn):
		return serveNext(ctx, "transport", d.to.None, conn, conn)
	}
	complete := func(seen []byte) bool {
		_, _, err := parseTransportHeader(seen)
		return !errors.Is(err, io.ErrUnexpectedEOF)
	}
	first, next, err := peekFirst(ctx, conn, peekSpec{max: headerFixed + maxHeader, within: d.timeout, enough: complete})
	h, size, wrong := parseTransportHeader(first)
	switch {
	case errors.Is(err, io.EOF) && 0 < len(first) && len(first) < len(headerPreface):
		return serveNext(ctx, "transport", d.to.None, conn, next)
	case err != nil:
		return ByteCount{}, d.noBytesError(conn, "transport", "no header", err)
	case errors.Is(wrong, errNoTransportHeader):
		return serveNext(ctx, "transport", d.to.None, conn, next)
	case wrong == nil:
		_, wrong = io.ReadFull(next, make([]byte, size))
	}
	if wrong != nil {
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "transport", Reason: "bad header", Err: wrong}
	}
	return serveNext(context.WithValue(ctx, headerKey{}, &h), "transport", d.to.Header, conn, withPort(next, h))
}

// hasHeader reports whether TLS negotiated a header.
func hasHeader(conn net.Conn) bool {
	state, ok := TLSState(conn)
	return ok && state.NegotiatedProtocol == TransportProtocol
}

// withPort returns conn with the destination port of h.
func withPort(conn net.Conn, h TransportHeader) net.Conn {
	f := &bufferedConn{Conn: conn, took: true}
	if isOwnAddress := addrPort(conn.LocalAddr()); isOwnAddress.IsValid() && h.Name == "" {
		f.server = net.TCPAddrFromAddrPort(netip.AddrPortFrom(isOwnAddress.Addr(), h.Port))
	}
	return f
}

// Describe shows the servers.
func (d *detectTransport) Describe() layer.Node {
	n := d.describe("transport", []string{"header", "none"}, d.to.Header, d.to.None)
	n.State = layer.State{{Key: "timeout", Value: d.timeout.Round(time.Millisecond)}}
	return n
}

type headerKey struct{}

// TransportHeaderFromContext returns the header that [DetectTransport] read
// from the connection.
func TransportHeaderFromContext(ctx context.Context) (TransportHeader, bool) {
	h, ok := ctx.Value(headerKey{}).(*TransportHeader)
	if !ok {
		return TransportHeader{}, false
	}
	return *h, true
}

// parseHeaderMessage reads message Header. It ignores unknown fields, and the last
// of two equal fields counts.
func parseHeaderMessage(b []byte) (TransportHeader, error) {
	var h TransportHeader
	port := int32(0)
	err := eachField(b, func(f field) error {
		switch {
		case f.number == portField && f.kind == protowire.VarintType:
			port = int32(f.varint)
		case f.number == nameField && f.kind == protowire.BytesType:
			if !utf8.Valid(f.bytes) {
				return errNotProtobuf
			}
			h.Name = string(f.bytes)
		case f.number == protocolField && f.kind == protowire.BytesType:
			return parseSession(f.bytes, &h.Protocol)
		}
		return nil
	})
	switch {
	case err != nil:
		return TransportHeader{}, err
	case port <= 0 || port >= 1<<16:
		return TransportHeader{}, fmt.Errorf("port %d is not from 1 to 65535", port)
	}
	h.Port = uint16(port)
	return h, h.Validate()
}

// parseSession reads message SessionProtocol. An unknown kind leaves p unchanged.
func parseSession(b []byte, p *Protocol) error {
	return eachField(b, func(f field) error {
		switch {
		case f.number == http1Field && f.kind == protowire.BytesType:
			*p = HTTP1
		case f.number == http2Field && f.kind == protowire.BytesType:
			*p = HTTP2
		default:
			return nil
		}
		return eachField(f.bytes, func(field) error { return nil })
	})
}

// field is a field of a message in protobuf.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
}

// errNotProtobuf replaces the errors of protowire, because some of them match
// io.ErrUnexpectedEOF.
var errNotProtobuf = errors.New("the message is not valid protobuf")

// eachField calls do for each field of a message, in order.
func eachField(b []byte, do func(f field) error) error {
	for len(b) > 0 {
		var f field
		var n, size int
		if f.number, f.kind, n = protowire.ConsumeTag(b); n < 0 || f.number > protowire.MaxValidNumber {
			return errNotProtobuf
		}
		b = b[n:]
		switch f.kind {
		case protowire.VarintType:
			f.varint, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(f.number, f.kind, b)
		}
		if size < 0 {
			return errNotProtobuf
		}
		b = b[size:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// isDNSName reports whether s is a DNS host name, with or without a final dot.
// A last label of digits alone is part of an IP address.
func isDNSName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	last := s[strings.LastIndexByte(s, '.')+1:]
	return caller.IsDNS(s) && strings.Trim(last, "0123456789") != ""
}
