package message

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
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

// Informer sends informational (1xx) responses to the client of a request.
type Informer interface {
	Inform(status int, header http.Header) error
}

type informerKey struct{}

// InformerKey is the context key under which the context of a received request has its
// [Informer].
var InformerKey any = informerKey{}

// Inform forwards a 1xx response that an upstream sent for a request with the context ctx.
// If ctx has an [httptrace.ClientTrace] with Got1xxResponse, that function receives the
// response. Otherwise the [Informer] of ctx receives it, if ctx has one.
func Inform(ctx context.Context, status int, header http.Header) error {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.Got1xxResponse != nil {
		return trace.Got1xxResponse(status, textproto.MIMEHeader(header))
	}
	if to, ok := ctx.Value(InformerKey).(Informer); ok {
		return to.Inform(status, header)
	}
	return nil
}
