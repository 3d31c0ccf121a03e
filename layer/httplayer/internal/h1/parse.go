package h1

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// SyntaxError reports that a received message is malformed or uses an unsupported feature.
type SyntaxError struct {
	Status int // status of the response to a malformed request
	Reason string
}

// Error is part of the error interface. The text has the reason.
func (e *SyntaxError) Error() string { return "malformed message: " + e.Reason }

func malformed(reason string) error { return &SyntaxError{http.StatusBadRequest, reason} }

var (
	errLineEnd     = malformed("line does not end with CRLF")
	errRequestLine = malformed("request line is not a method, a target and a version")
	errStatusLine  = malformed("status line is not a version, a status and a reason")
	errTarget      = malformed("invalid request target")

	errTooLarge = &SyntaxError{http.StatusRequestHeaderFieldsTooLarge, "headers are too large"}
	errVersion  = &SyntaxError{http.StatusHTTPVersionNotSupported, "version is not HTTP/1.0 or HTTP/1.1"}
)

// protos has the names of the versions by their minor number.
var protos = [...]string{"HTTP/1.0", "HTTP/1.1"}

// maxFields is the maximum number of header fields of a message.
const maxFields = 1000

// span is a range of bytes in the buffer that contains the parsed message.
type span struct{ from, to int32 }

func (s span) in(b []byte) []byte { return b[s.from:s.to] }
func (s span) of(t string) string { return t[s.from:s.to] }

// field is a parsed header field. Its name is canonical, because the parser rewrites the
// name in the buffer.
type field struct {
	name, value span
	drop        bool // leave the field out of the header map: Host and Transfer-Encoding
}

// head is the parsed start line and header fields of a message.
type head struct {
	fields []field

	method, target span
	host           span
	status         int
	minor          int   // minor version of HTTP/1: 0 or 1
	length         int64 // value of Content-Length; -1 without one
	chunked        bool
	closes, keeps  bool // Connection has the options close and keep-alive
	expects        bool // Expect: 100-continue is present
	hop            bool // hop-by-hop fields are present
}

func (h *head) reset() { *h = head{fields: h.fields[:0], length: -1} }

// isRequest reports whether parseRequest parsed h.
func (h *head) isRequest() bool { return h.method.to > 0 }

// persists reports whether another message may follow on the connection after this one.
func (h *head) persists() bool { return !h.closes && (h.minor == 1 || h.keeps) }

const headerEnd = "\r\n\r\n"

// findEnd returns the length of the headers at the start of b, including the empty line. It
// returns 0 if the empty line is missing. The argument searched is the length of the part
// of b that an earlier call has searched.
func findEnd(b []byte, searched int) int {
	from := max(searched-len(headerEnd)+1, 0)
	i := bytes.Index(b[from:], []byte(headerEnd))
	if i < 0 {
		return 0
	}
	return from + i + len(headerEnd)
}

// parseRequest parses b, which has exactly the headers of one request, including the empty
// line.
func (h *head) parseRequest(b []byte) error {
	h.reset()
	i := 0
	for message.Class[b[i]]&message.TokenByte != 0 {
		i++
	}
	h.method = span{0, int32(i)}
	if i == 0 || b[i] != ' ' {
		return errRequestLine
	}
	i++
	from := i
	for message.Class[b[i]]&message.TargetByte != 0 {
		i++
	}
	h.target = span{int32(from), int32(i)}
	const version = " HTTP/1.1\r\n"
	if i == from || b[i] != ' ' || len(b)-i < len(version) {
		return errRequestLine
	}
	if err := h.parseVersion(b[i+1:], errRequestLine); err != nil {
		return err
	}
	i += len(version)
	if b[i-2] != '\r' || b[i-1] != '\n' {
		return errRequestLine
	}
	if err := h.parseFields(b, i); err != nil {
		return err
	}
	if h.host.to == 0 && h.minor == 1 {
		return malformed("no Host field")
	}
	return h.checkFraming()
}

// parseVersion parses the version in the first 8 bytes of b. If these bytes are not a version, it
// returns the error in the argument malformed. If the version is not supported, it returns
// errVersion.
func (h *head) parseVersion(b []byte, malformed error) error {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	if string(b[:5]) != "HTTP/" || !digit(b[5]) || b[6] != '.' || !digit(b[7]) {
		return malformed
	}
	if b[5] != '1' || b[7] > '1' {
		return errVersion
	}
	h.minor = int(b[7] - '0')
	return nil
}

func (h *head) parseResponse(b []byte) error {
	h.reset()
	const minimum = "HTTP/1.1 200\r\n\r\n"
	if len(b) < len(minimum) {
		return errStatusLine
	}
	if err := h.parseVersion(b, errStatusLine); err != nil {
		return err
	}
	h.status = int(message.ParseLength(b[9:12])) // -1 if it is not a number
	line := bytes.IndexByte(b, '\n')
	if b[8] != ' ' || h.status < 100 || line < 13 || b[line-1] != '\r' {
		return errStatusLine
	}
	if reason := b[12 : line-1]; len(reason) > 0 && (reason[0] != ' ' || !message.ValidValueBytes(reason)) {
		return errStatusLine
	}
	h.target = span{9, int32(line - 1)}
	return h.parseFields(b, line+1)
}

// checkFraming returns an error if the headers do not define the length of the body
// unambiguously.
func (h *head) checkFraming() error {
	switch {
	case h.chunked && h.length >= 0:
		return malformed("Content-Length and Transfer-Encoding")
	case h.chunked && h.minor == 0:
		return malformed("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

// parseFields parses the field lines of b from offset i up to the empty line. The empty
// line must be the end of b.
func (h *head) parseFields(b []byte, i int) error {
	for b[i] != '\r' {
		from := i
		i = endOfName(b, i)
		switch {
		case i == from && (b[i] == ' ' || b[i] == '\t'):
			return malformed("folded field or space before a field name")
		case i == from:
			return malformed("field name is not a token")
		case b[i] != ':':
			return malformed("no colon directly after a field name")
		case len(h.fields) == maxFields:
			return errTooLarge
		}
		f := field{name: span{int32(from), int32(i)}}
		i++
		length := bytes.IndexByte(b[i:], '\r')
		if length < 0 || b[i+length+1] != '\n' {
			return errLineEnd
		}
		if line := b[i : i+length]; !message.ValidValueBytes(line) {
			if slices.Contains(line, '\n') {
				return errLineEnd
			}
			return malformed("control character in a field value")
		}
		f.value = trim(b, i, i+length)
		i += length + 2
		if err := h.interpret(&f, f.name.in(b), f.value.in(b)); err != nil {
			return err
		}
		h.fields = append(h.fields, f)
	}
	if b[i+1] != '\n' || i+2 != len(b) {
		return errLineEnd
	}
	return nil
}

// endOfName makes the field name at offset i canonical in b, and returns the offset of its
// end.
func endOfName(b []byte, i int) int {
	word := true
	for class := message.Class[b[i]]; class&message.TokenByte != 0; class = message.Class[b[i]] {
		switch {
		case word && class&message.LowerByte != 0:
			b[i] -= 'a' - 'A'
		case !word && class&message.UpperByte != 0:
			b[i] += 'a' - 'A'
		}
		word = b[i] == '-'
		i++
	}
	return i
}

// trim returns the span of b[from:to] without leading and trailing white space.
func trim(b []byte, from, to int) span {
	for from < to && (b[from] == ' ' || b[from] == '\t') {
		from++
	}
	for to > from && (b[to-1] == ' ' || b[to-1] == '\t') {
		to--
	}
	return span{int32(from), int32(to)}
}

// interpret handles a field that affects the body, the connection or the host, such as
// Content-Length or Connection. It records the meaning of the value in h. It sets f.drop if the
// field must not be in the header map. It ignores other fields. It returns an error if the value is
// invalid or not supported.
func (h *head) interpret(f *field, name, value []byte) error {
	switch string(name) {
	case "Host":
		switch {
		case !h.isRequest():
			return nil
		case h.host.to > 0:
			return malformed("two Host fields")
		case !message.All(value, message.HostByte):
			return malformed("invalid Host")
		}
		f.drop, h.host = true, f.value
	case "Content-Length":
		if h.length >= 0 {
			return malformed("two Content-Length fields")
		}
		h.length = message.ParseLength(value)
		if h.length < 0 {
			return malformed("Content-Length is not a number of at most 18 digits")
		}
	case "Transfer-Encoding":
		f.drop = true
		switch {
		case h.chunked:
			return malformed("two Transfer-Encoding fields")
		case !equalFold(value, "chunked"):
			return &SyntaxError{http.StatusNotImplemented, "Transfer-Encoding is not chunked"}
		}
		h.chunked = true
	case "Connection":
		h.hop = true
		for option := range bytes.SplitSeq(value, []byte(",")) {
			option = bytes.Trim(option, " \t")
			h.closes = h.closes || equalFold(option, "close")
			h.keeps = h.keeps || equalFold(option, "keep-alive")
		}
	case "Expect":
		if h.isRequest() && !equalFold(value, "100-continue") {
			return &SyntaxError{http.StatusExpectationFailed, "Expect is not 100-continue"}
		}
		h.expects = true
	case "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade":
		h.hop = true
	}
	return nil
}

// equalFold reports whether b equals lower, ignoring the case of ASCII letters. Other letters do not
// match, because their encoding is longer.
func equalFold(b []byte, lower string) bool {
	return len(b) == len(lower) && strings.EqualFold(string(b), lower)
}

// header returns the parsed fields as a map. The argument text has the bytes that were parsed. The
// names and values in the map are substrings of text. The map stores its values in the memory of
// the argument values, an empty slice, which saves allocations. If the capacity of that slice is
// too small, header allocates a larger one.
func (h *head) header(text string, values []string) http.Header {
	header := make(http.Header, len(h.fields))
	if len(h.fields) > cap(values) {
		values = make([]string, 0, len(h.fields))
	}
	for i := range h.fields {
		f := &h.fields[i]
		if f.drop {
			continue
		}
		name := f.name.of(text)
		n := len(values)
		values = append(values, f.value.of(text))
		if earlier, ok := header[name]; ok {
			header[name] = append(earlier, values[n])
		} else {
			header[name] = values[n : n+1 : n+1]
		}
	}
	return header
}

// maxChunkLine is the maximum length of the line before the data of a chunk, in bytes.
const maxChunkLine = 272

// chunkLine parses the line before the data of a chunk. The line has the size of the chunk
// and extensions, which are ignored. If first is false, chunkLine first expects the CRLF
// that ends the previous chunk. It returns the length n of the parsed bytes, or 0 if more
// bytes are needed.
func chunkLine(b []byte, first bool) (n int, size int64, err error) {
	if !first {
		if len(b) > 0 && b[0] != '\r' || len(b) > 1 && b[1] != '\n' {
			return 0, 0, malformed("chunk does not end with CRLF")
		}
		if len(b) < 2 {
			return 0, 0, nil
		}
		n = 2
	}
	line := b[n:min(len(b), n+maxChunkLine)]
	end := bytes.IndexByte(line, '\n')
	switch {
	case end < 0 && len(line) < maxChunkLine:
		return 0, 0, nil
	case end < 1 || line[end-1] != '\r':
		return 0, 0, errLineEnd
	}
	digits, extensions, _ := bytes.Cut(line[:end-1], []byte(";"))
	length, err := strconv.ParseUint(string(digits), 16, 63)
	if err != nil || len(digits) > 16 || !message.ValidValueBytes(extensions) {
		return 0, 0, malformed("invalid chunk size or extension")
	}
	return n + end + 1, int64(length), nil
}
