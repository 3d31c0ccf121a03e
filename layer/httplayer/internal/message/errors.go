package message

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gotower/gotower/layer"
)

var (
	// ErrNotSent reports that no byte of the request was sent. Its body may have been read, and
	// is open. You can send the request on another connection.
	ErrNotSent = errors.New("request not sent")

	// ErrNotProcessed reports that the server did not process the request. It sent REFUSED_STREAM
	// for it, or a GOAWAY with a last stream ID below the request's, or the HTTP/2 connection
	// ended before all request headers were sent.
	ErrNotProcessed = errors.New("request not processed by the server")

	// ErrNoResponse reports that an HTTP/1.1 connection, on which earlier requests had been served,
	// ended after the request was sent and before the first byte of the response. Usually the
	// server closed the idle connection at the same time.
	ErrNoResponse = errors.New("connection ended without a response")
)

// ErrSlowBody is the error of reading a request body that arrives too slowly. Its Timeout
// method returns true, and it matches [layer.ErrIdleTimeout].
var ErrSlowBody error = slowBodyError{}

// slowBodyError is the type of ErrSlowBody.
type slowBodyError struct{}

func (slowBodyError) Error() string        { return "request body arrives too slowly" }
func (slowBodyError) Timeout() bool        { return true }
func (slowBodyError) Temporary() bool      { return false }
func (slowBodyError) Is(target error) bool { return target == layer.ErrIdleTimeout }

// RequestError reports that a request cannot be sent because a part of it is invalid.
// Reason names the part.
type RequestError struct{ Reason string }

// Error returns a text with the reason.
func (e *RequestError) Error() string { return "invalid request: " + e.Reason }

// The errors of a request with a body that differs in length from its Content-Length.
var (
	ErrLongBody  error = &RequestError{Reason: "body is longer than its Content-Length"}
	ErrShortBody error = &RequestError{Reason: "body is shorter than its Content-Length"}
)

// ResetError reports that a stream was reset with an HTTP/2 error code.
type ResetError struct {
	Code   uint32
	Remote bool   // true if the peer sent the RST_STREAM
	Reason string // reason of a reset by this side; may be empty
}

// Error returns a text with the name of the error code and, if this side reset the stream, the reason.
func (e *ResetError) Error() string {
	switch {
	case e.Remote:
		return "stream reset by the peer: " + CodeName(e.Code)
	case e.Reason != "":
		return "stream reset: " + CodeName(e.Code) + ": " + e.Reason
	}
	return "stream reset: " + CodeName(e.Code)
}

// ShortBody is the Reason of a reset because a received body is incomplete.
const ShortBody = "the body is shorter than content-length"

// Is makes e match ErrNotProcessed in [errors.Is], if the peer reset the stream with
// REFUSED_STREAM, and io.ErrUnexpectedEOF after a ShortBody, as the error of an HTTP/1.1 body does.
func (e *ResetError) Is(target error) bool {
	return target == ErrNotProcessed && e.Remote && e.Code == CodeRefusedStream ||
		target == io.ErrUnexpectedEOF && !e.Remote && e.Reason == ShortBody
}

// HTTP/2 error codes (RFC 9113, section 7).
const (
	CodeNo uint32 = iota
	CodeProtocol
	CodeInternal
	CodeFlowControl
	CodeSettingsTimeout
	CodeStreamClosed
	CodeFrameSize
	CodeRefusedStream
	CodeCancel
	CodeCompression
	CodeConnect
	CodeEnhanceYourCalm
	CodeInadequateSecurity
	CodeHTTP11Required
)

var codeNames = [...]string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
	"FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
	"INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

// CodeName returns the name of an HTTP/2 error code, such as PROTOCOL_ERROR. For an unknown
// code it returns a text with the number.
func CodeName(code uint32) string {
	if int(code) < len(codeNames) {
		return codeNames[code]
	}
	return fmt.Sprintf("error code %d", code)
}

// ResetCode returns the HTTP/2 error code with which a stream is reset because of err. This is
// the code in err's [ResetError] or [CanceledError], unless that code is NO_ERROR. Otherwise it
// is CANCEL for a context error, and INTERNAL_ERROR for any other error.
func ResetCode(err error) uint32 {
	if reset, ok := errors.AsType[*ResetError](err); ok && reset.Code != CodeNo {
		return reset.Code
	}
	if canceled, ok := errors.AsType[*CanceledError](err); ok && canceled.Code != CodeNo {
		return canceled.Code
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return CodeCancel
	}
	return CodeInternal
}

// MalformedError is the reason why the engine ended a received request whose body or trailers violate
// HTTP/2. It is not a [ResetError], because layers take that for a failure of the endpoint.
type MalformedError struct{ Reset ResetError }

// Error returns a text with the error of the stream.
func (e *MalformedError) Error() string { return "malformed request: " + e.Reset.Error() }

// CanceledError is the cause of a request context's end when the client has left: either it reset the
// stream with the HTTP/2 error code Code, or it closed the connection, and Code is NO_ERROR. The error
// matches [context.Canceled].
type CanceledError struct{ Code uint32 }

// Error returns a text that tells how the client has left.
func (e *CanceledError) Error() string {
	if e.Code == CodeNo {
		return "the client has closed the connection"
	}
	return "request canceled by the client: " + CodeName(e.Code)
}

// StatusCode returns 499, the status with which nginx logs such a request. It is not sent, because
// there is no client.
func (*CanceledError) StatusCode() int { return StatusClientClosedRequest }

// StatusClientClosedRequest is the status of a request whose client left before the response.
const StatusClientClosedRequest = 499

// Is makes the error match context.Canceled in [errors.Is].
func (*CanceledError) Is(target error) bool { return target == context.Canceled }
