package tcplayer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// parseHeaderMessage reads message Header. As with any protobuf, a field that is
// not known is passed over, and of one that is there twice the last counts.
func parseHeaderMessage(b []byte) (TransportHeader, error) {
	var h TransportHeader
	port := int32(0)
	err := eachField(b, func(f field) error {
		switch f.number { //nolint:exhaustive // the limits of field numbers are none
		case portField:
			port = int32(f.varint)
			return f.want(protowire.VarintType)
		case nameField:
			if !utf8.Valid(f.bytes) {
				return errNotText
			}
			h.Name = string(f.bytes)
			return f.want(protowire.BytesType)
		case protocolField:
			if err := f.want(protowire.BytesType); err != nil {
				return err
			}
			return parseSession(f.bytes, &h.Protocol)
		}
		return nil
	})
	switch {
	case err != nil:
		return TransportHeader{}, err
	case port <= 0 || port >= 1<<16:
		return TransportHeader{}, fmt.Errorf("port %d", port)
	}
	h.Port = uint16(port)
	return h, h.Validate()
}

// parseSession reads message SessionProtocol. A kind that is not known leaves p.
func parseSession(b []byte, p *Protocol) error {
	return eachField(b, func(f field) error {
		switch f.number {
		case http1Field:
			*p = HTTP1
		case http2Field:
			*p = HTTP2
		default:
			return nil
		}
		if err := f.want(protowire.BytesType); err != nil {
			return err
		}
		return eachField(f.bytes, func(field) error { return nil })
	})
}

// field is one of a message in protobuf.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte // as part of the message
}

func (f field) want(kind protowire.Type) error {
	if f.kind != kind {
		return fmt.Errorf("field %d is of wire type %d", f.number, f.kind)
	}
	return nil
}

// What protowire says of these would match io.ErrUnexpectedEOF, as if the rest of
// the message were still to come.
var (
	errNoField = errors.New("the message is no protobuf, or is cut short")
	errNotText = errors.New("the name is not UTF-8")
)

// eachField calls do for each field of a message, in order.
func eachField(b []byte, do func(f field) error) error {
	for len(b) > 0 {
		var f field
		var n, size int
		if f.number, f.kind, n = protowire.ConsumeTag(b); n < 0 || f.number > protowire.MaxValidNumber {
			return errNoField
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
			return errNoField
		}
		b = b[size:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// dnsName reports whether s can be the name of a host in DNS (RFC 5280, 7.2, and
// underscores), with or without a dot at its end. What ends in a number is an
// address, or looks like one.
func dnsName(s string) bool {
	const most = 253
	if len(s) > most {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if !dnsLabel(label) {
			return false
		}
		last = label
	}
	return strings.Trim(last, "0123456789") != ""
}

func dnsLabel(s string) bool {
	const most = 63
	if s == "" || len(s) > most || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}
