package tcplayer

import (
	"bytes"
	"strings"
)

// Protocol is what a client speaks, as far as its first bytes tell.
type Protocol uint8

// The protocols that [ProtocolOf] knows. Opaque is all others.
const (
	Opaque Protocol = iota
	HTTP1
	HTTP2
)

// String returns "opaque", "HTTP/1" or "HTTP/2".
func (p Protocol) String() string {
	switch p {
	case HTTP1:
		return "HTTP/1"
	case HTTP2:
		return "HTTP/2"
	default:
		return "opaque"
	}
}

// preface is how HTTP/2 begins where both sides know (RFC 9113, 3.4). Its
// length is that of what one must see to tell.
const preface = "PRI * HTTP/2.0"

// ProtocolOf tells a protocol by the first bytes of a client, as linkerd's proxy
// does: HTTP/2 by its preface; HTTP/1 by a request line, or what may be the
// beginning of one; fewer than 14 bytes are opaque.
func ProtocolOf(first []byte) Protocol {
	switch {
	case len(first) < len(preface):
		return Opaque
	case bytes.HasPrefix(first, []byte(preface)):
		return HTTP2
	case requestLine(first):
		return HTTP1
	default:
		return Opaque
	}
}

// requestLine reports whether b begins with the request line of HTTP/1.0 or
// HTTP/1.1, or is the beginning of one. Empty lines may come before it (RFC
// 9112, 2.2).
func requestLine(b []byte) bool {
	for len(b) > 0 && (b[0] == '\r' || b[0] == '\n') {
		if b[0] == '\r' && len(b) > 1 && b[1] != '\n' {
			return false
		}
		b = b[1:]
	}
	b, more := word(b, tokenByte)
	if more {
		b, more = word(b, targetByte)
	}
	if !more {
		return b != nil // it ends in one of the two
	}
	for _, version := range []string{"HTTP/1.1\r\n", "HTTP/1.0\r\n", "HTTP/1.1\n", "HTTP/1.0\n"} {
		if begins(b, version) {
			return true
		}
	}
	return false
}

// word returns what comes after a word of such bytes and a space. If there is
// no space, there is nothing more; and if it is no such word, nil.
func word(b []byte, is func(byte) bool) (rest []byte, more bool) {
	w, rest, more := bytes.Cut(b, []byte{' '})
	if more && len(w) == 0 || !all(w, is) {
		return nil, false
	}
	if !more {
		rest = []byte{}
	}
	return rest, more
}

func all(b []byte, is func(byte) bool) bool {
	for _, c := range b {
		if !is(c) {
			return false
		}
	}
	return true
}

// tokenByte is a tchar of RFC 9110, 5.6.2.
func tokenByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func targetByte(c byte) bool { return c > ' ' && c != 0x7f }
