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

// TransportProtocol is the ALPN protocol of [TransportHeader]. If client and server
// negotiate it, the client sends the header first.
const TransportProtocol = "transport.l5d.io/v1"

// TransportHeader describes a connection to the peer's proxy. The client sends it inside TLS,
// before the bytes of the connection.
type TransportHeader struct {
	// Port is the port of the server behind the proxy, 1 to 65535.
	Port uint16

	// Name is the DNS name of the server, if the peer is a gateway. An empty Name means the
	// server at the peer's address.
	Name string

	// Protocol is the connection's protocol. Opaque means that it is unknown.
	Protocol Protocol
}

// NewTransportHeader returns the header for a connection to an endpoint's given port. For a
// gateway, authority is the "name:port" of the server behind it. The header then carries
// authority's port, and also the name if it is a DNS name. As in linkerd's proxy, an authority
// without a port is ignored.
func NewTransportHeader(port uint16, authority string, p Protocol) TransportHeader {
	h := TransportHeader{Port: port, Protocol: p}
	host, text, err := net.SplitHostPort(authority)
	if err != nil {
		return h
	}
	// The port of authority replaces the endpoint's, because a gateway has a port of its own.
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
		h.Port = uint16(n)
		if isDNSName(host) {
			h.Name = host
		}
	}
	return h
}

// Validate returns an error if a peer would reject h because of its port or name.
func (h TransportHeader) Validate() error {
	switch {
	case h.Port == 0:
		return errors.New("transport header without a port")
	case h.Name != "" && !isDNSName(h.Name):
		return fmt.Errorf("transport header name %q must be a DNS name", h.Name)
	}
	return nil
}

// A transport header is the preface, four bytes with the length, and a protobuf message of that length.
const (
	headerPreface = TransportProtocol + "\r\n\r\n"
	headerFixed   = len(headerPreface) + 4 // preface and length

	// maxHeader is the maximum size of the protobuf message in bytes, as in linkerd's
	// proxy.
	maxHeader = 64 << 10
)

// Field numbers of linkerd's protobuf messages Header and SessionProtocol.
const (
	portField     = 1
	nameField     = 2
	protocolField = 3
	http1Field    = 1
	http2Field    = 2
)

// AppendTo appends the encoded header to b. The encoding is a preface, a length and a
// protobuf message. AppendTo does not call Validate.
func (h TransportHeader) AppendTo(b []byte) []byte {
	b = append(b, headerPreface...)
	start := len(b)
	// The length is written when the message is complete.
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
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// appendSession appends a connection's protocol to b, as the message SessionProtocol in the field
// protocolField. SessionProtocol consists of a single field, an empty message, whose number,
// kind, specifies the protocol.
func appendSession(b []byte, kind protowire.Number) []byte {
	b = protowire.AppendTag(b, protocolField, protowire.BytesType)
	// The length of the message: one byte for the tag and one for its length.
	b = protowire.AppendVarint(b, 2)
	b = protowire.AppendTag(b, kind, protowire.BytesType)
	return protowire.AppendVarint(b, 0)
}

// errNoTransportHeader reports that a connection does not begin with a [TransportHeader].
var errNoTransportHeader = errors.New("no transport header")

// parseTransportHeader decodes the header at the start of first, and returns its encoded
// size. The error is [io.ErrUnexpectedEOF] if more bytes are needed, and
// errNoTransportHeader if the bytes are not a header. Another error reports an invalid
// header.
func parseTransportHeader(first []byte) (h TransportHeader, size int, err error) {
	if !hasPrefixSoFar(first, headerPreface) {
		return TransportHeader{}, 0, errNoTransportHeader
	}
	// The prefix fits so far, but the length is not complete.
	if len(first) < headerFixed {
		return TransportHeader{}, 0, io.ErrUnexpectedEOF
	}
	length := binary.BigEndian.Uint32(first[len(headerPreface):])
	// Checked before the message has arrived, so that no client makes the peek wait for too many bytes.
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

// TransportServers holds the servers of [DetectTransport]. A connection for a nil server is reset.
type TransportServers struct {
	Header Server // connections with a transport header; the server receives the bytes after it
	None   Server // other connections; the server receives all bytes
}

// DetectTransport returns a [Server] that reads the [TransportHeader] at the start of a connection,
// which can be there only if TLS negotiated [TransportProtocol]; see [DetectTLS]. servers.Header
// gets the rest of the connection, and [TransportHeaderFromContext] returns the header. If the
// header names no server, LocalAddr and [OriginalDst] return the header's port, so that [Forward]
// connects to it. Connections without a header go to servers.None. If they did not negotiate
// TransportProtocol, no byte of them is read.
//
// If the header is not complete within 10 s ([WithDetectTimeout]), the connection is reset, even if no
// byte has arrived. A header may be up to 64 KiB long. The client's identity is not checked; see
// [TLSState].
//
// Admission: the chosen server decides. A rejected connection stays open if no byte was read.
// Otherwise it is reset, as in [Detect]. Ready returns nil if one server is ready, and otherwise
// waits for servers.None, or for servers.Header if None is nil. Cancellation: when ctx ends, so does
// the detection, and the connection is reset. Body: DetectTransport removes the read deadline from the
// connection. Cost: about 2 KiB in 14 allocations, and 8 µs.
//
// Errors: errors from the server are returned unchanged. Other errors are a [layer.Error], which
// matches [layer.ErrTimeout], [layer.ErrNoRoute] or [io.ErrUnexpectedEOF], or wraps the error about
// an invalid header.
func DetectTransport(servers TransportServers, opts ...DetectOption) Server {
	return &detectTransport{choice: newChoice(servers.Header, servers.None), detectOptions: newDetectOptions(opts), servers: servers}
}

// detectTransport is the Server that DetectTransport returns.
type detectTransport struct {
	choice
	detectOptions
	servers TransportServers
}

// Call reads the header and passes the connection to one of the servers.
func (d *detectTransport) Call(ctx context.Context, conn net.Conn) (ByteCount, error) {
	switch {
	case ctx.Err() != nil:
		return ByteCount{}, canceledError(ctx, "transport")
	case !hasHeader(conn) || d.skips(ctx, conn):
		return serveNext(ctx, "transport", d.servers.None, conn, conn)
	}
	// complete tells the peek to stop at the end of the header, or as soon as the bytes cannot be a header.
	complete := func(data []byte) bool {
		_, _, err := parseTransportHeader(data)
		return !errors.Is(err, io.ErrUnexpectedEOF)
	}
	first, next, err := peekFirst(ctx, conn, peekSpec{max: headerFixed + maxHeader, timeout: d.timeout, enough: complete})
	h, size, wrong := parseTransportHeader(first)
	switch {
	// Too short to be a header, whatever would have followed.
	case errors.Is(err, io.EOF) && 0 < len(first) && len(first) < len(headerPreface):
		return serveNext(ctx, "transport", d.servers.None, conn, next)
	case err != nil:
		return ByteCount{}, d.noBytesError(conn, "transport", "no header", err)
	case errors.Is(wrong, errNoTransportHeader):
		return serveNext(ctx, "transport", d.servers.None, conn, next)
	case wrong == nil:
		// The peek has left the header in the connection. It must be taken out before the server reads.
		_, wrong = io.ReadFull(next, make([]byte, size))
	}
	if wrong != nil {
		reset(conn)
		return ByteCount{}, &layer.Error{Layer: "transport", Reason: "bad header", Err: wrong}
	}
	return serveNext(context.WithValue(ctx, headerKey{}, &h), "transport", d.servers.Header, conn, withPort(next, h))
}

// hasHeader reports whether TLS negotiated that conn begins with a header.
func hasHeader(conn net.Conn) bool {
	state, ok := TLSState(conn)
	return ok && state.NegotiatedProtocol == TransportProtocol
}

// withPort wraps conn, from which the header h was read, as a connection whose first bytes have been
// consumed. If h names no server, the server is at this host, on h's port, so LocalAddr returns that
// port instead of the one of the proxy.
func withPort(conn net.Conn, h TransportHeader) net.Conn {
	f := newBufferedConn(conn)
	f.consumed = true
	// If the header names a server, the port alone is not enough to reach it.
	if local := addrPort(conn.LocalAddr()); local.IsValid() && h.Name == "" {
		f.server = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), h.Port))
	}
	return f
}

// Describe shows the servers and the time limit.
func (d *detectTransport) Describe() layer.Node {
	n := d.describe("transport", []string{"header", "none"}, d.servers.Header, d.servers.None)
	n.State = layer.State{{Key: "timeout", Value: d.timeout.Round(time.Millisecond)}}
	return n
}

// headerKey is the context key of the header.
type headerKey struct{}

// TransportHeaderFromContext returns the header that [DetectTransport] read from the
// connection. It returns false for a connection without a header.
func TransportHeaderFromContext(ctx context.Context) (TransportHeader, bool) {
	h, ok := ctx.Value(headerKey{}).(*TransportHeader)
	if !ok {
		return TransportHeader{}, false
	}
	return *h, true
}

// parseHeaderMessage decodes the protobuf message Header. It ignores unknown fields. If a
// field occurs twice, the last value applies.
func parseHeaderMessage(b []byte) (TransportHeader, error) {
	var h TransportHeader
	port := int32(0)
	// eachField calls the function for each field. Fields of another number or kind are skipped.
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
	// The message carries the port as an int32, so it may be out of range.
	case port <= 0 || port >= 1<<16:
		return TransportHeader{}, fmt.Errorf("port %d is not from 1 to 65535", port)
	}
	h.Port = uint16(port)
	return h, h.Validate()
}

// parseSession decodes the protobuf message SessionProtocol into p. An unknown protocol
// leaves p unchanged.
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
		// The empty message must be valid protobuf too.
		return eachField(f.bytes, func(field) error { return nil })
	})
}

// field is a decoded field of a protobuf message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64 // value, if kind is VarintType
	bytes  []byte // value, if kind is BytesType
}

// errNotProtobuf replaces errors from protowire, because some of them match io.ErrUnexpectedEOF,
// which means that more bytes are needed.
var errNotProtobuf = errors.New("the message is not valid protobuf")

// eachField calls do for each field of the protobuf message b, in order. It returns the first
// error from do, or errNotProtobuf.
func eachField(b []byte, do func(f field) error) error {
	for len(b) > 0 {
		var f field
		var n, size int
		// Each field begins with a tag, which holds its number and kind.
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

// isDNSName reports whether s is a DNS host name, with or without a final dot. It returns false
// if the last label consists of digits, because such a name is an IP address.
func isDNSName(s string) bool {
	// A final dot only says that the name is complete.
	s = strings.TrimSuffix(s, ".")
	last := s[strings.LastIndexByte(s, '.')+1:]
	return caller.IsDNS(s) && strings.Trim(last, "0123456789") != ""
}
