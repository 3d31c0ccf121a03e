package meters

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

const unexpected = "unexpected"

// ErrorKind returns what the label error says of err, in linkerd's words:
// "failfast", "loadshed", "identity required", "gateway loop", "tls detection
// timeout", "response timeout", "i/o", or "unexpected" for anything else. An
// error with a method ErrorKind() string has its own; give it one of few.
func ErrorKind(err error) string {
	var own interface{ ErrorKind() string }
	var identity *httplayer.IdentityError
	var said *httplayer.StatusError
	switch {
	case errors.As(err, &own):
		return own.ErrorKind()
	case errors.Is(err, layer.ErrFailFast):
		return "failfast"
	case errors.As(err, &identity):
		return "identity required"
	case errors.As(err, &said) && said.Code == http.StatusLoopDetected:
		return "gateway loop"
	case errors.Is(err, layer.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return timeoutKind(err)
	case isLocal(err):
		return "loadshed"
	case isIO(err):
		return "i/o"
	}
	return unexpected
}

// timeoutKind tells a handshake that did not come from a response.
func timeoutKind(err error) string {
	var at *layer.Error
	if errors.As(err, &at) && at.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isLocal reports whether a layer of this proxy refused, because of its own
// limits and not for want of an endpoint.
func isLocal(err error) bool {
	var at *layer.Error
	return errors.Is(err, layer.ErrNotReady) && errors.As(err, &at) && at.Endpoint == "" && !isIO(err)
}

func isIO(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &dns) || errors.As(err, &errno) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)
}

// isDenied reports whether err is an answer that a policy chose. linkerd counts
// those as denials and not as errors.
func isDenied(err error) bool {
	var said *httplayer.StatusError
	return errors.As(err, &said) && (said.Code == http.StatusForbidden || said.Code == http.StatusUnauthorized)
}
