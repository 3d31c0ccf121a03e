package message

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// Stream is the sending side of one response, of either protocol. Its methods
// are called by one goroutine at a time, except Inform.
type Stream interface {
	// Inform sends a 1xx response, unless the response has started.
	Informer

	// WriteHeader starts the response. The length is -1 if it is unknown, and
	// has precedence over the field Content-Length. If end is true, neither a
	// body nor trailers follow. It is buffered. The header is encoded before it
	// returns.
	WriteHeader(status int, header http.Header, length int64, end bool) error

	// Write sends a part of the body. It is buffered.
	Write(p []byte) (int, error)

	// Finish ends the response with trailers, which may be nil. It is called
	// for each complete response, also if WriteHeader had end.
	Finish(trailer http.Header) error

	// Flush sends the buffered bytes.
	Flush() error

	// Hijack takes over the connection, in HTTP/1.1 only.
	Hijack() (net.Conn, *bufio.ReadWriter, error)

	// SetReadDeadline and SetWriteDeadline set the deadlines of the request
	// body and of the response.
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}
