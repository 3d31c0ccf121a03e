package meters

import (
	"context"
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

const unexpected = "unexpected"

// ErrorKind returns what the label error says of err that a request failed with,
// in linkerd's words: "identity required", "gateway loop", "response timeout", or
// what tcplayer.ErrorKind says of connections. An error with a method
// ErrorKind() string has its own; give it one of few.
func ErrorKind(err error) string {
	var own interface{ ErrorKind() string }
	var identity *httplayer.IdentityError
	var said *httplayer.StatusError
	switch {
	case errors.As(err, &own):
		return own.ErrorKind()
	case errors.Is(err, layer.ErrFailFast):
		return "failfast"
	case isShed(err):
		return "loadshed"
	case errors.As(err, &identity):
		return "identity required"
	case errors.As(err, &said) && said.Code == http.StatusLoopDetected:
		return "gateway loop"
	case errors.Is(err, layer.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return timeoutKind(err)
	}
	return tcplayer.ErrorKind(err)
}

// isShed reports whether err is a refusal for which a client is told to come again,
// whatever it is that the layer which refused has waited for.
func isShed(err error) bool {
	status, _ := httplayer.StatusOf(err)
	return status == http.StatusServiceUnavailable && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// timeoutKind tells a handshake that did not come from a response.
func timeoutKind(err error) string {
	var at *layer.Error
	if errors.As(err, &at) && at.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isDenied reports whether err is an answer that a policy chose. linkerd counts
// those as denials and not as errors.
func isDenied(err error) bool {
	var said *httplayer.StatusError
	return errors.As(err, &said) && (said.Code == http.StatusForbidden || said.Code == http.StatusUnauthorized)
}

// isGone reports whether err says no more than that the client left, which is
// not the proxy's.
func isGone(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, layer.ErrClosed)
}
