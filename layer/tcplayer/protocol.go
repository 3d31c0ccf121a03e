package tcplayer

import (
	"bytes"
	"strings"
)

// Protocol is what a client speaks, as far as its first bytes tell.
type Protocol uint8

// The protocols that [DetectProtocol] knows. Opaque is all others.
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

// preface is how HTTP/2 begins with prior knowledge (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0"

// DetectProtocol tells a protocol by the first bytes of a client: HTTP/2 by its
// preface, HTTP/1 by its request line, and everything else is opaque.
//
// A request line that is malformed is HTTP/1 too, so that an HTTP server rejects
// it: one with further blanks, another version, an odd method or, in HTTP/0.9, no
// version. As opaque bytes it would reach an application whose parser is lenient,
// with header fields that nothing has checked. A line that has not ended is HTTP/1 if it
// begins with a token: text without line ends waits for the detection timeout.
func DetectProtocol(first []byte) Protocol {
	p, _ := protocolOf(first)
	return p
}

// protocolOf also reports whether further bytes cannot change the answer.
func protocolOf(first []byte) (p Protocol, final bool) {
	if bytes.HasPrefix(first, []byte(preface)) {
		return HTTP2, true
	}
	// Empty lines may come before a request (RFC 9112, section 2.2).
	line, _, ended := bytes.Cut(bytes.TrimLeft(first, " \t\r\n"), []byte{'\n'})
	words := wordsOf(line)
	switch {
	case len(first) == 0:
		return Opaque, false
	case len(words) == 0:
		return HTTP1, false
	case !isToken(words[0][0]) || !isPrintable(words[0]):
		return Opaque, true
	case !ended:
		return HTTP1, false
	case isRequestLine(words):
		return HTTP1, true
	}
	return Opaque, true
}

// isRequestLine reports whether a parser may take a line of such words for the
// request line of HTTP/1: the last one is a version, or it is the GET of HTTP/0.9.
func isRequestLine(words [][]byte) bool {
	if len(words) == 2 && string(words[0]) == "GET" && words[1][0] == '/' {
		return true
	}
	const name = "HTTP/"
	last := words[len(words)-1]
	if len(words) < 2 || len(last) < len(name) || !bytes.EqualFold(last[:len(name)], []byte(name)) {
		return false
	}
	for _, c := range last[len(name):] {
		if c != '.' && !isAlphanumeric(c) {
			return false // an access log that is sent as text ends a line in HTTP/1.1"
		}
	}
	return true
}

// wordsOf splits a line at every byte that a parser is known to take for a blank.
func wordsOf(line []byte) [][]byte {
	spaced := bytes.Clone(line)
	for i, c := range spaced {
		if '\t' <= c && c <= '\r' || 0x1c <= c && c <= ' ' || c == 0x85 || c == 0xa0 {
			spaced[i] = ' '
		}
	}
	return bytes.FieldsFunc(spaced, func(r rune) bool { return r == ' ' })
}

func isPrintable(word []byte) bool {
	for _, c := range word {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// isToken is a tchar of RFC 9110, section 5.6.2.
func isToken(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 }

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
