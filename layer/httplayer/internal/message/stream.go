package message

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// Stream is the sending side of one response, over HTTP/1.1 or HTTP/2. One goroutine at a
// time calls its methods. Only Inform may be called concurrently.
type Stream interface {
	// Inform sends a 1xx response. It has no effect after WriteHeader.
	Informer

	// Respond sends the response of an [Exchange] and closes its body, which is not nil.
	// For an [http.Handler], the methods below are called instead.
	Respond(rsp *http.Response) error

	// WriteHeader buffers the status and the headers of the response. length is the length
	// of the body, or -1 if the length is unknown. The argument length takes precedence
	// over the field Content-Length. If end is true, neither a body nor trailers follow.
	// The stream does not keep header, because WriteHeader encodes it before it returns.
	WriteHeader(status int, header http.Header, length int64, end bool) error

	// Write adds bytes to the body. It buffers them, and sends each full buffer.
	Write(p []byte) (int, error)

	// Finish ends the response with the trailers, which may be nil. It is called for each
	// complete response, even if end was true in WriteHeader.
	Finish(trailer http.Header) error

	// Flush sends the buffered headers and bytes of the body.
	Flush() error

	// Hijack passes the connection to the caller. Only HTTP/1.1 supports it.
	Hijack() (net.Conn, *bufio.ReadWriter, error)

	// SetReadDeadline sets the deadline for reading the request body. SetWriteDeadline sets
	// the deadline for writing the response.
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}
