package h1

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// SyntaxError reports that a received message is malformed or uses an unsupported feature.
type SyntaxError struct {
	Status int // status of the response to a malformed request
	Reason string
}

// Error returns a text with the reason.
func (e *SyntaxError) Error() string { return "malformed message: " + e.Reason }

func malformed(reason string) error { return &SyntaxError{http.StatusBadRequest, reason} }

var (
	errRequestLine = malformed("request line is not a method, a target and a version")
	errStatusLine  = malformed("status line is not a version, a status and a reason")
	errTarget      = malformed("invalid request target")

	errTooLong  = &SyntaxError{http.StatusRequestURITooLong, "request line is too long"}
	errTooLarge = &SyntaxError{http.StatusRequestHeaderFieldsTooLarge, "headers are too large"}
	errVersion  = &SyntaxError{http.StatusHTTPVersionNotSupported, "version is not HTTP/1"}
)

// protos holds the names of the versions by their minor number.
var protos = [...]string{"HTTP/1.0", "HTTP/1.1"}

// maxFields is how many header fields a message may contain. It bounds the memory for a message of
// many tiny fields.
const maxFields = 4000

// span is a range of bytes in the buffer that contains the parsed message.
type span struct{ start, end int32 }

func (s span) bytes(b []byte) []byte { return b[s.start:s.end] }
func (s span) text(t string) string  { return t[s.start:s.end] }

// field is a parsed header field. Its name is canonical, because the parser rewrites the
// name in the buffer.
type field struct {
	name, value span
	drop        bool // leave the field out of the header map: Host and Transfer-Encoding
}

// head is the parsed start line and header fields of a message. Parsing continues with the next line
// when more bytes have arrived, so that each line is parsed once.
type head struct {
	fields []field

	stage    stage
	next     int // offset of the first unparsed byte
	searched int // length of the part in which a line end was looked for

	method, target span // target is the status and the reason in a response
	host           span
	status         int
	minor          int   // minor version of HTTP/1: 0, or 1 for any later one
	length         int64 // value of Content-Length; -1 without one
	chunked        bool  // Transfer-Encoding is chunked
	closes, keeps  bool  // Connection has the options close and keep-alive
	expects        bool  // Expect: 100-continue is present
	hop            bool  // hop-by-hop fields are present
}

// stage is the part of a head that is parsed next. The values are in the order of the parts.
type stage uint8

const (
	inMethod stage = iota // also the status line of a response
	inTarget
	inVersion
	inFields
)

// reset prepares h for the next message. Until the version is parsed, the message counts as HTTP/1.1.
func (h *head) reset() { *h = head{fields: h.fields[:0], length: -1, minor: 1} }

// isRequest reports whether h is the head of a request and not of a response, which has no method.
func (h *head) isRequest() bool { return h.method.end > 0 }

// persists reports whether another message may follow on the connection after this one.
func (h *head) persists() bool { return !h.closes && (h.minor == 1 || h.keeps) }

// emptyLines returns the length of the empty lines at the start of b. A message may follow empty
// lines (RFC 9112, section 2.2), which some clients send after a request body.
func emptyLines(b []byte) (n int) {
	for {
		switch {
		case n < len(b) && b[n] == '\n':
			n++
		case n+1 < len(b) && b[n] == '\r' && b[n+1] == '\n':
			n += 2
		default:
			return n
		}
	}
}

// line returns the next line of b without its end, which is CRLF or LF, and the line's offset
// after it. It returns 0 if the line is incomplete.
func (h *head) line(b []byte) (line []byte, next int) {
	start := max(h.searched, h.next)
	// Earlier calls have searched the bytes before start already.
	i := bytes.IndexByte(b[start:], '\n')
	if i < 0 {
		h.searched = len(b)
		return nil, 0
	}
	end := start + i
	next = end + 1
	if end > h.next && b[end-1] == '\r' {
		end--
	}
	return b[h.next:end], next
}

// parseRequest parses the head of a request, that is, the request line and the fields, at the start of
// b. It returns the head's length. It returns 0 if b does not yet hold all of it; the caller then reads
// more and calls it again with the same bytes and more. A head that cannot become valid any more is an
// error immediately.
func (h *head) parseRequest(b []byte) (n int, err error) {
	if h.stage != inFields {
		if ok, err := h.requestLine(b); !ok {
			return 0, err
		}
	}
	if n, err = h.parseFields(b); n == 0 || err != nil {
		return 0, err
	}
	// Only HTTP/1.0 requests may lack a Host field.
	if h.host.end == 0 && h.minor == 1 {
		return 0, malformed("no Host field")
	}
	return n, h.checkRequest()
}

// requestLine parses the request line from where the last call has stopped, and reports whether it is
// complete. Each part is checked byte by byte as it arrives, so that something other than HTTP is
// rejected early. Several spaces count as one.
func (h *head) requestLine(b []byte) (ok bool, err error) {
	i := h.next
	if h.stage == inMethod {
		for i < len(b) && message.Class[b[i]]&message.TokenByte != 0 {
			i++
		}
		// Each part is complete once a byte after it has arrived. Until then, the next call continues at h.next.
		if h.next = i; i == len(b) || string(b) == "\r" { // an empty line may begin
			return false, nil
		}
		if i == 0 || b[i] != ' ' {
			return false, errRequestLine
		}
		h.method, h.stage = span{end: int32(i)}, inTarget
	}
	if h.stage == inTarget {
		// start stays 0 until the first byte of the target has arrived.
		for h.target.start == 0 && i < len(b) && b[i] == ' ' {
			i++
		}
		if h.next = i; i == len(b) {
			return false, nil
		}
		if h.target.start == 0 {
			h.target.start = int32(i)
		}
		for i < len(b) && message.Class[b[i]]&message.TargetByte != 0 {
			i++
		}
		if h.next = i; i == len(b) {
			return false, nil
		}
		if h.target.end = int32(i); h.target.end == h.target.start || b[i] != ' ' {
			return false, errRequestLine
		}
		h.stage = inVersion
	}
	for i < len(b) && b[i] == ' ' {
		i++
	}
	h.next = i
	const name = "HTTP/"
	version := b[i:]
	end := bytes.IndexByte(version, '\n')
	// Compare what has arrived with the start of "HTTP/1.1\r\n".
	switch start := version[:min(len(version), len(name))]; {
	case string(start) != name[:len(start)], end < 0 && len(version) > len("HTTP/1.1\r"):
		return false, errRequestLine
	case end < 0:
		return false, nil
	}
	h.next += end + 1
	version = bytes.TrimSuffix(version[:end], []byte("\r"))
	major, minor := h.version(version)
	switch {
	case major < 0 || len(version) != len("HTTP/1.1"):
		return false, errRequestLine
	case major != 1:
		return false, errVersion
	}
	h.minor, h.stage = minor, inFields
	return true, nil
}

// version returns the major and the minor version at the start of b. A minor version above 1 is
// read as 1 (RFC 9110, section 2.5). It returns -1 if b does not begin with a version.
func (*head) version(b []byte) (major, minor int) {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	if len(b) < len("HTTP/1.1") || string(b[:5]) != "HTTP/" || !digit(b[5]) || b[6] != '.' || !digit(b[7]) {
		return -1, 0
	}
	return int(b[5] - '0'), min(int(b[7]-'0'), 1)
}

// parseResponse parses a response's head at the start of b, like parseRequest.
func (h *head) parseResponse(b []byte) (n int, err error) {
	if h.stage != inFields {
		line, next := h.line(b)
		if next == 0 {
			const name = "HTTP/" // reject other protocols before the line is complete
			if start := b[:min(len(b), len(name))]; string(start) != name[:len(start)] && string(b) != "\r" {
				return 0, errStatusLine
			}
			return 0, nil
		}
		if err := h.statusLine(line); err != nil {
			return 0, err
		}
		h.next, h.stage = next, inFields
	}
	return h.parseFields(b)
}

// statusLine parses a response's first line. A version above 1.1 is read as 1.1, because the
// response is framed as one of HTTP/1.1.
func (h *head) statusLine(line []byte) error {
	const version = len("HTTP/1.1")
	major, minor := h.version(line)
	start := version
	for start < len(line) && line[start] == ' ' {
		start++
	}
	// The status needs a space before it and three digits.
	if major < 1 || start == version || len(line) < start+3 {
		return errStatusLine
	}
	if h.minor = minor; major > 1 {
		h.minor = 1
	}
	h.status = int(message.ParseLength(line[start : start+3])) // -1 if it is not a number
	reason := line[start+3:]
	if h.status < 100 || len(reason) > 0 && (reason[0] != ' ' || !message.ValidValueBytes(reason)) {
		return errStatusLine
	}
	h.target = span{int32(start), int32(len(line))} // of a response, the status and the reason
	return nil
}

// checkRequest returns an error if the headers do not define the request body's length
// unambiguously.
func (h *head) checkRequest() error {
	switch {
	case h.chunked && h.length >= 0:
		return malformed("Content-Length and Transfer-Encoding")
	case h.chunked && h.minor == 0:
		return malformed("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

// checkResponse returns an error if the headers do not define the response body's length unambiguously. In
// contrast to a request, Content-Length is ignored if the body is chunked, as all clients do (RFC 9112,
// section 6.3), but the connection is not used again.
func (h *head) checkResponse() error {
	switch {
	case h.chunked && h.minor == 0:
		return malformed("Transfer-Encoding in HTTP/1.0")
	case h.chunked && h.length >= 0:
		h.length, h.closes = -1, true
	}
	return nil
}

// parseFields parses the field lines of b from where the last call has stopped, and the empty line
// after them. It returns the offset after the empty line, or 0 if more bytes are needed.
func (h *head) parseFields(b []byte) (n int, err error) {
	for {
		// next is 0 if the line is not complete yet. An empty line ends the fields.
		line, next := h.line(b)
		switch {
		case next == 0:
			return 0, nil
		case len(line) == 0:
			return next, nil
		case len(h.fields) == maxFields:
			return 0, errTooLarge
		}
		if err := h.parseField(b, h.next, h.next+len(line)); err != nil {
			return 0, err
		}
		h.next = next
	}
}

// parseField parses the field line b[start:end].
func (h *head) parseField(b []byte, start, end int) error {
	i := endOfName(b, start)
	switch {
	case i == start && (b[i] == ' ' || b[i] == '\t'):
		return malformed("folded field or space before a field name")
	case i == start:
		return malformed("field name is not a token")
	case b[i] != ':':
		return malformed("no colon directly after a field name")
	case !message.ValidValueBytes(b[i+1 : end]):
		return malformed("control character in a field value")
	}
	f := field{name: span{int32(start), int32(i)}, value: trim(b, i+1, end)}
	if err := h.interpret(&f, f.name.bytes(b), f.value.bytes(b)); err != nil {
		return err
	}
	h.fields = append(h.fields, f)
	return nil
}

// endOfName returns the offset at which the field name that starts at offset i ends. It also makes the
// name canonical, in b itself, so that the header map needs no copy of it.
func endOfName(b []byte, i int) int {
	word := true // at the start of a word, whose first letter becomes a capital
	// The loop ends at a byte that is not part of a token. There is one: a line feed ends the line.
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

// trim returns the span of b[start:end] without leading and trailing white space.
func trim(b []byte, start, end int) span {
	for start < end && (b[start] == ' ' || b[start] == '\t') {
		start++
	}
	for end > start && (b[end-1] == ' ' || b[end-1] == '\t') {
		end--
	}
	return span{int32(start), int32(end)}
}

// interpret records in h what the value of the field f means, if f affects the body, the connection or
// the host, as Content-Length and Connection do. It ignores other fields. It sets f.drop if f must not be
// in the header map. It returns an error if the value is invalid or not supported, or if f must not
// occur twice.
func (h *head) interpret(f *field, name, value []byte) error {
	switch string(name) {
	case "Host":
		switch {
		case !h.isRequest():
			return nil
		case h.host.end > 0:
			return malformed("two Host fields")
		case !message.ValidHost(value):
			return malformed("invalid Host")
		}
		f.drop, h.host = true, f.value
	case "Content-Length":
		length := message.ParseLength(value)
		switch f.drop = h.length >= 0; { // the first one is in the map already
		case length < 0:
			return malformed("Content-Length is not a number of at most 18 digits")
		case f.drop && (h.isRequest() || length != h.length): // a response may repeat it
			return malformed("two Content-Length fields")
		}
		h.length = length
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
	case "Expect": // other expectations are ignored and forwarded, as by other proxies
		h.expects = h.expects || equalFold(value, "100-continue")
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

// header returns the parsed fields as a map, and their order. text is a string with the parsed bytes,
// and the names and values are substrings of it. values is an empty slice whose capacity holds the
// values of the map, to save an allocation; header allocates a larger one if needed.
func (h *head) header(text string, values []string) (header http.Header, arrived order) {
	header = make(http.Header, len(h.fields))
	if len(h.fields) > cap(values) {
		values = make([]string, 0, len(h.fields))
	}
	if len(h.fields) > 0 {
		// Also contains the dropped fields, which are not in header.
		arrived = order(text[h.fields[0].name.start:h.next])
	}
	var seen message.Lengths
	for i := range h.fields {
		f := &h.fields[i]
		if f.drop {
			continue
		}
		name := f.name.text(text)
		n := len(values)
		values = append(values, f.value.text(text))
		var earlier []string
		if seen.Add(name) {
			earlier = header[name]
		}
		if earlier != nil {
			header[name] = append(earlier, values[n])
		} else {
			// The capacity of 1 makes a later append copy, instead of overwriting the next value.
			header[name] = values[n : n+1 : n+1]
		}
	}
	return header, arrived
}

// maxChunkLine is the maximum length of the line before a chunk's data, in bytes.
const maxChunkLine = 8 << 10

// chunkLine parses the line before a chunk's data: the size in hexadecimal digits, and extensions,
// which are ignored. Unless first is true, the CRLF that ends the previous chunk must come before it. n
// is the number of parsed bytes, or 0 if more bytes are needed. A bare LF is an error, because servers
// disagree about it, which an attacker could use to smuggle a request.
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
	whole := end >= 0
	if !whole {
		end = len(line)
	}
	digits := 0
	for digits < end && isHex(line[digits]) {
		digits++
	}
	rest := line[digits:end]
	// An invalid line is rejected even before all of it has arrived.
	switch {
	case whole && (end == 0 || line[end-1] != '\r'):
		return 0, 0, malformed("chunk size does not end with CRLF")
	case digits == 0 && end > 0:
		return 0, 0, malformed("invalid chunk size")
	case !whole && len(line) == maxChunkLine:
		return 0, 0, malformed("chunk extension is too long")
	}
	rest = bytes.TrimSuffix(rest, []byte("\r"))
	extension := bytes.TrimLeft(rest, " \t")
	if len(extension) > 0 && extension[0] != ';' || bytes.IndexByte(extension, '\r') >= 0 {
		return 0, 0, malformed("invalid chunk size or extension")
	}
	significant := bytes.TrimLeft(line[:digits], "0")
	// Does not fit into an int64.
	if len(significant) > 16 || len(significant) == 16 && hexValue(significant[0]) > 7 {
		return 0, 0, malformed("chunk size is too large")
	}
	if !whole {
		return 0, 0, nil
	}
	for _, c := range significant {
		size = size<<4 | int64(hexValue(c))
	}
	return n + end + 1, size, nil
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// hexValue returns the value of the hexadecimal digit c.
func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}
