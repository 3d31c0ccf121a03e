package tcplayer

import (
	"bytes"
	"strings"
)

// Protocol is an application protocol that [Detect] recognizes by the first bytes of a
// connection.
type Protocol uint8

// The protocols that [Detect] recognizes. Opaque is any other protocol.
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

// preface begins an HTTP/2 connection with prior knowledge (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0"

// protocolOf returns the protocol of a connection that begins with first. The result is final if
// more bytes cannot change it, or if first is maxDetect bytes long. Until then it is Opaque,
// because a connection that remains undecided is opaque.
//
// HTTP/1 begins with a method, after optional empty lines, followed by a blank. Any other byte in
// these places ends the detection. A line with a method and a blank is decided by its end: by LF,
// or by CR, after which no request line goes on. A malformed line that a lenient HTTP parser could
// accept (see isRequestLine) counts as HTTP/1, so that our server rejects it. As opaque bytes, it
// would reach such a parser with header fields that were not checked.
func protocolOf(first []byte) (p Protocol, final bool) {
	if bytes.HasPrefix(first, []byte(preface)) {
		return HTTP2, true
	}
	// A decision is due when maxDetect bytes have arrived.
	full := len(first) >= maxDetect
	line := skipEmptyLines(first)
	// Nothing but empty lines yet.
	if len(line) == 0 || string(line) == "\r" {
		return Opaque, full
	}
	method := methodLength(line)
	// The method may go on in later bytes.
	if method == len(line) {
		return Opaque, full
	}
	// No method, or a byte that cannot follow one.
	if method == 0 || strings.IndexByte(" \t\r\n", line[method]) < 0 {
		return Opaque, true
	}
	// The request line is complete up to its first line break.
	end := bytes.IndexAny(line, "\r\n")
	switch {
	case end >= 0 && isRequestLine(wordsOf(line[:end])):
		return HTTP1, true
	// A line that does not fit into maxDetect bytes may be a request with a long target.
	case end < 0 && full && hasLongTarget(wordsOf(line)):
		return HTTP1, true
	}
	return Opaque, end >= 0 || full
}

// skipEmptyLines returns b without leading empty lines, which may come before a request (RFC
// 9112, section 2.2). It also skips blanks, because some lenient parsers do.
func skipEmptyLines(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \t\n")
		if !bytes.HasPrefix(b, []byte("\r\n")) {
			return b
		}
		b = b[2:]
	}
}

// methodLength returns the length of the method at the start of line, or 0 if line does not begin
// with a method. A method is a token. All registered methods begin with a letter. Text in other
// protocols often begins with a digit or with punctuation.
func methodLength(line []byte) int {
	// A method begins with a letter, although HTTP allows other characters.
	if !isLetter(line[0]) {
		return 0
	}
	n := 1
	for n < len(line) && isToken(line[n]) {
		n++
	}
	return n
}

// hasLongTarget reports whether words, the beginning of a long line, can be a method and the
// beginning of a path or an absolute URI.
func hasLongTarget(words [][]byte) bool {
	return len(words) > 1 && (words[1][0] == '/' || bytes.Contains(words[1], []byte("://")))
}

// isRequestLine reports whether a lenient parser could accept the words as an HTTP/1 request
// line: if the last word is a version, or if the line is an HTTP/0.9 GET, after which some
// servers read header fields.
func isRequestLine(words [][]byte) bool {
	// A line of HTTP/0.9 has no version.
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
			return false // for example a line of an access log, which ends in HTTP/1.1"
		}
	}
	return true
}

// wordsOf splits line into words at every byte that some HTTP parser treats as white space.
func wordsOf(line []byte) [][]byte {
	spaced := bytes.Clone(line)
	for i, c := range spaced {
		// Some of these bytes are white space only in Latin-1 or Unicode, but a lenient parser may accept them.
		if '\t' <= c && c <= '\r' || 0x1c <= c && c <= ' ' || c == 0x85 || c == 0xa0 {
			spaced[i] = ' '
		}
	}
	return bytes.FieldsFunc(spaced, func(r rune) bool { return r == ' ' })
}

// isToken reports whether c is allowed in a token (tchar of RFC 9110, section 5.6.2).
func isToken(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 }

// isAlphanumeric reports whether c is an ASCII letter or digit.
func isAlphanumeric(c byte) bool { return '0' <= c && c <= '9' || isLetter(c) }

// isLetter reports whether c is an ASCII letter. The bit 0x20 makes it lower case.
func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
