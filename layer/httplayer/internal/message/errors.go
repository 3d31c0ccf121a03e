package message

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

var (
	// ErrNotSent means that nothing of the request was sent, and that its body
	// is unread.
	ErrNotSent = errors.New("request not sent")

	// ErrNotProcessed means that the server reported that it did not process
	// the request: REFUSED_STREAM, or a GOAWAY with a lower last stream.
	ErrNotProcessed = errors.New("request not processed by the server")
)

// ErrSlowBody is the error of reading a request body that arrives too slowly. It
// is a timeout and matches [layer.ErrIdleTimeout].
var ErrSlowBody error = slowBodyError{}

type slowBodyError struct{}

func (slowBodyError) Error() string        { return "request body arrives too slowly" }
func (slowBodyError) Timeout() bool        { return true }
func (slowBodyError) Temporary() bool      { return false }
func (slowBodyError) Is(target error) bool { return target == layer.ErrIdleTimeout }

// RequestError is a request that cannot be sent, because a part of it is
// invalid.
type RequestError struct{ Reason string }

// Error is part of the error interface.
func (e *RequestError) Error() string { return "invalid request: " + e.Reason }

// ResetError is a stream that was reset with an HTTP/2 error code.
type ResetError struct {
	Code   uint32
	Remote bool   // the peer sent the RST_STREAM
	Reason string // of a local reset; may be empty
}

// Error is part of the error interface.
func (e *ResetError) Error() string {
	switch {
	case e.Remote:
		return "stream reset by the peer: " + CodeName(e.Code)
	case e.Reason != "":
		return "stream reset: " + CodeName(e.Code) + ": " + e.Reason
	}
	return "stream reset: " + CodeName(e.Code)
}

// Is reports whether target is ErrNotProcessed and the peer refused the stream.
func (e *ResetError) Is(target error) bool {
	return target == ErrNotProcessed && e.Remote && e.Code == CodeRefusedStream
}

// Codes of HTTP/2 (RFC 9113, section 7).
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

// CodeName returns the name of an HTTP/2 error code.
func CodeName(code uint32) string {
	if int(code) < len(codeNames) {
		return codeNames[code]
	}
	return fmt.Sprintf("error code %d", code)
}

// ResetCode returns the code with which a stream is reset because of err. It is the code of
// the reset in err, if any, and otherwise INTERNAL_ERROR.
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

// CanceledError is the cause of a request context that ended because the client reset the
// stream. It matches [context.Canceled].
type CanceledError struct{ Code uint32 }

// Error is part of the error interface.
func (e *CanceledError) Error() string { return "request canceled by the client: " + CodeName(e.Code) }

// Is reports whether target is context.Canceled.
func (*CanceledError) Is(target error) bool { return target == context.Canceled }
