package meters

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// outcome is what a route's or a backend's request came to: http_status and
// error.
type outcome struct {
	status int // 0: there was none
	err    fault
}

// fault is what went wrong, as linkerd's routes have it.
type fault uint8

const (
	noFault fault = iota
	failFast
	loadShed
	requestTimeout
	headersTimeout
	idleTimeout
	cancelled
	broken
	unknownFault
)

func (f fault) String() string {
	return [...]string{
		"", "FAIL_FAST", "LOAD_SHED", "REQUEST_TIMEOUT", "RESPONSE_HEADERS_TIMEOUT", "IDLE_TIMEOUT", "CANCEL", "IO", "UNKNOWN",
	}[f]
}

func (o outcome) labels() Labels {
	return Labels{"http_status": statusLabel(o.status), "error": o.err.String()}
}

// key is one of few numbers.
func (o outcome) key() int { return o.status<<4 | int(o.err) }

// withoutResponse is what err came to in place of a response. What went wrong at
// an endpoint is the response that the client gets for it, as in linkerd's proxy;
// what was decided above endpoints is an error.
func withoutResponse(req *http.Request, err error) outcome {
	if f := faultOf(err); f != noFault {
		return outcome{err: f}
	}
	status, _ := httplayer.StatusOf(err)
	switch {
	case status == http.StatusServiceUnavailable:
		return outcome{err: loadShed}
	case status == http.StatusInternalServerError:
		return outcome{err: unknownFault}
	case strings.HasPrefix(req.Header.Get("Content-Type"), "application/grpc"):
		status = http.StatusOK
	}
	return outcome{status: httpStatus(status)}
}

// afterHead is what a response came to that err broke off; nil did not.
func afterHead(rsp *http.Response, err error) outcome {
	o := outcome{status: httpStatus(rsp.StatusCode)}
	if err == nil {
		return o
	}
	switch status, _ := httplayer.StatusOf(err); {
	case errors.Is(err, layer.ErrUnread):
		o.err = cancelled
	case faultOf(err) != noFault:
		o.err = faultOf(err)
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		o.err = broken
	default:
		o.err = unknownFault
	}
	return o
}

// faultOf is what has a name whether there was a response or not.
func faultOf(err error) fault {
	switch {
	case errors.Is(err, layer.ErrFailFast):
		return failFast
	case errors.Is(err, layer.ErrHeadTimeout), errors.Is(err, layer.ErrTryTimeout):
		return headersTimeout
	case errors.Is(err, layer.ErrIdleTimeout):
		return idleTimeout
	case errors.Is(err, layer.ErrTimeout):
		return timeoutFault(err)
	case errors.Is(err, context.Canceled):
		return cancelled
	}
	return noFault
}

// timeoutFault tells a limit on the request from one on connecting to an endpoint,
// which is that endpoint's failure.
func timeoutFault(err error) fault {
	var at *layer.Error
	for errors.As(err, &at) {
		if at.Kind != nil && errors.Is(at.Kind, layer.ErrTimeout) {
			if at.Layer == "endpoint" || at.Layer == "dial" {
				return noFault
			}
			return requestTimeout
		}
		err = at.Err
	}
	return requestTimeout
}
