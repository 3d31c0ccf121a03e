package httplayer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// gRPC status codes; see google.golang.org/grpc/codes.
const (
	grpcCanceled          = 1
	grpcUnknown           = 2
	grpcDeadlineExceeded  = 4
	grpcNotFound          = 5
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcAborted           = 10
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

// StatusFromError returns the HTTP status of the response for err, and the gRPC status code
// of the response to a gRPC request. It returns 200 and 0 for nil. The first matching row
// applies, as in linkerd's proxy (app/core/src/errors/respond.rs):
//
//	a [StatusError]                                       its Code and GRPC
//	the request body arrived too slowly                   408   4 DEADLINE_EXCEEDED
//	rejected by a rate limit                              429   8 RESOURCE_EXHAUSTED
//	timeout of a layer, or fail-fast of a queue           504   4 DEADLINE_EXCEEDED
//	rejected: no endpoint is available, or it has ended   503  14 UNAVAILABLE
//	a retry was rejected                                  503  14 UNAVAILABLE
//	timeout while connecting, or of the caller's context  504   4 DEADLINE_EXCEEDED
//	no route                                              404   5 NOT_FOUND
//	canceled by the caller                                502   1 CANCELLED
//	stream reset by the endpoint                          502  the code for the reset
//	the endpoint failed or has the wrong identity         502  14 UNAVAILABLE
//	rejected for any other reason                         503  14 UNAVAILABLE
//	anything else                                         500  13 INTERNAL
//
// An injected fault (layer.ErrInjected) has the status of its cause. A reset of an HTTP/1
// request that was sent over HTTP/2 (orig-proto) counts as a failure of the endpoint.
func StatusFromError(err error) (httpStatus int, grpcCode uint32) {
	var chosen *StatusError
	switch {
	case err == nil:
		return http.StatusOK, 0
	case errors.As(err, &chosen):
		return chosen.status(), chosen.grpcCode()
	case errors.Is(err, message.ErrSlowBody):
		return http.StatusRequestTimeout, grpcDeadlineExceeded
	case isRate(err):
		return http.StatusTooManyRequests, grpcResourceExhausted
	case errors.Is(err, layer.ErrFailFast), errors.Is(err, layer.ErrTimeout):
		return http.StatusGatewayTimeout, grpcDeadlineExceeded
	case isShed(err), errors.Is(err, layer.ErrClosed), errors.Is(err, layer.ErrRetryRejected):
		return http.StatusServiceUnavailable, grpcUnavailable
	case timedOut(err):
		return http.StatusGatewayTimeout, grpcDeadlineExceeded
	case errors.Is(err, layer.ErrNoRoute):
		return http.StatusNotFound, grpcNotFound
	case errors.Is(err, context.Canceled):
		return http.StatusBadGateway, grpcCanceled
	case isPeer(err), has[*message.ResetError](err), has[*IdentityError](err):
		return http.StatusBadGateway, peerCode(err)
	case errors.Is(err, layer.ErrNotReady):
		return http.StatusServiceUnavailable, grpcUnavailable
	}
	return http.StatusInternalServerError, grpcInternal
}

// closes reports whether the response for err closes the connection of the client, so that
// its next requests may reach another proxy. For a [StatusError] the result is its field
// Close. It is false for a missing route, a rate limit and an injected fault, because
// another proxy would respond in the same way. For any other error it is true.
func closes(err error) bool {
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.Close && !errors.Is(err, layer.ErrInjected)
	}
	return !errors.Is(err, layer.ErrNoRoute) && !errors.Is(err, layer.ErrInjected) && !isRate(err)
}

// has reports whether err or an error that it wraps is an E.
func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// peerCode returns the gRPC code for a failure of the endpoint: the result of resetCode for a
// stream reset, and otherwise UNAVAILABLE.
func peerCode(err error) uint32 {
	if reset, ok := errors.AsType[*message.ResetError](err); ok {
		return resetCode(reset)
	}
	return grpcUnavailable
}

// isRate reports whether err is a rejection by a rate limit. It returns false if an outer
// layer has wrapped the rejection in its own [layer.Error].
func isRate(err error) bool {
	rejection, ok := errors.AsType[*layer.Error](err)
	return ok && errors.Is(err, layer.ErrNotReady) && (rejection.Layer == "rate" || rejection.Layer == "rate_by")
}

// isShed reports whether err is a rejection that wraps a peerError and has an empty field Endpoint.
// A layer above the endpoint returns such an error because of an earlier failure at the endpoint.
// The rejected request did not reach the endpoint.
func isShed(err error) bool {
	rejection, ok := errors.AsType[*layer.Error](err)
	return ok && errors.Is(err, layer.ErrNotReady) && rejection.Endpoint == "" && has[*peerError](err)
}

func timedOut(err error) bool {
	// The kernel may stop dialing before the connect timeout of the Endpoint.
	op, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && op.Op == "dial" && op.Timeout()
}

// isPeer reports whether err occurred outside this process, at the endpoint or on the
// network.
func isPeer(err error) bool {
	return has[*peerError](err) || has[*net.OpError](err) || has[syscall.Errno](err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// peerError marks an error that occurred at the endpoint or on the way to it.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// resetCode returns the gRPC code for the HTTP/2 error code of a stream reset. The table is
// that in section "Errors" of gRPC's PROTOCOL-HTTP2.md. A code that is not in the table
// becomes INTERNAL.
func resetCode(reset *message.ResetError) uint32 {
	switch reset.Code {
	case message.CodeRefusedStream:
		return grpcUnavailable
	case message.CodeCancel:
		return grpcCanceled
	case message.CodeEnhanceYourCalm:
		return grpcResourceExhausted
	case message.CodeInadequateSecurity:
		return grpcPermissionDenied
	}
	return grpcInternal
}

// StatusError is an error that specifies the status of the response of a [Handler].
// [Classify] treats it as a response with that status. Use it with layer.FaultInjection, or
// return it from your own layer:
//
//	&StatusError{Code: 401, Header: http.Header{"Www-Authenticate": {"Bearer"}}} // 16 UNAUTHENTICATED
//	&StatusError{Code: 403, Reason: "web.default may not call books"}   // 7 PERMISSION_DENIED
//	&StatusError{Code: 508, Reason: "gateway loop", Close: true}        // 10 ABORTED
//	&StatusError{Code: 502, Reason: "no such backend", Close: true}     // 14 UNAVAILABLE
type StatusError struct {
	Code   int    // HTTP status, 400 to 599; other values become 500
	GRPC   uint32 // gRPC code; 0 selects the code that belongs to Code
	Reason string // text that Error returns; "" means the name of the status
	Close  bool   // close the connection of the client after the response

	// Header is added to the response, for example WWW-Authenticate. Detail is a sentence
	// for the client, and Body replaces the whole body; see [Problem]. With Body, Header
	// should have a Content-Type. The three fields must not be modified after the error was
	// returned.
	Header http.Header
	Detail string
	Body   []byte
}

// Error returns Reason, or the name of the status if Reason is empty.
func (e *StatusError) Error() string {
	if e.Reason != "" {
		return e.Reason
	}
	return "status " + message.StatusLines[e.status()]
}

func (e *StatusError) status() int {
	if e.Code < 400 || e.Code > 599 {
		return http.StatusInternalServerError
	}
	return e.Code
}

func (e *StatusError) grpcCode() uint32 {
	if e.GRPC != 0 {
		return e.GRPC
	}
	switch e.status() {
	case http.StatusBadRequest:
		return grpcInternal
	case http.StatusUnauthorized:
		return grpcUnauthenticated
	case http.StatusForbidden:
		return grpcPermissionDenied
	case http.StatusNotFound:
		return grpcUnimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return grpcUnavailable
	case http.StatusLoopDetected:
		return grpcAborted
	}
	return grpcUnknown
}

// ErrorHandler writes the response of a [Handler] or [Middleware] for an error or a
// rejection. At the call, w has the status of [StatusFromError] and the headers for the
// error, such as Retry-After and the Header of a [StatusError]. The function may change the
// status by WriteHeader, change the headers, and write a body. The response is kept in
// memory until the function returns. The function must not use r afterwards. A 2xx for CONNECT is
// ignored, because it would start a tunnel.
//
// An ErrorHandler is called concurrently. It is not called for gRPC requests, because their
// error responses have no body.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error)

// WithErrorHandler sets the function that writes error responses. The default is [Problem].
// Nil means responses without a body.
func WithErrorHandler(f ErrorHandler) HandlerOption {
	return func(h *handler) { h.onError = f }
}

// Problem is the default [ErrorHandler]. If err is a [StatusError] with a Body, it writes
// that body. Otherwise it writes problem details (RFC 9457) with the media type
// application/problem+json:
//
//	{"type":"about:blank","title":"Service Unavailable","status":503}
//
// The Detail of a StatusError is added as the member detail. The text of err is not sent,
// because it has addresses of endpoints.
func Problem(w http.ResponseWriter, _ *http.Request, err error) {
	status, _ := StatusFromError(err)
	problem := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{"about:blank", http.StatusText(status), status, ""}
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		if chosen.Body != nil {
			_, _ = w.Write(chosen.Body)
			return
		}
		problem.Detail = chosen.Detail
	}
	w.Header().Set("Content-Type", "application/problem+json")
	_ = json.NewEncoder(w).Encode(problem) //nolint:errchkjson // w is in memory
}

// describeError calls the ErrorHandler for err. The ErrorHandler may change the status and
// the headers of the error response rsp. The body that it writes becomes the body of rsp.
func (h *handler) describeError(rsp *http.Response, r *http.Request, err error) {
	w := &bodyRecorder{rsp: rsp}
	if h.onError != nil {
		h.onError(w, r, err)
	}
	rsp.ContentLength = int64(w.body.Len())
	rsp.Header.Set("Content-Length", strconv.Itoa(w.body.Len()))
	if w.body.Len() > 0 && r.Method != http.MethodHead {
		rsp.Body = io.NopCloser(&w.body)
	}
}

// bodyRecorder is the ResponseWriter that an ErrorHandler receives. The ErrorHandler writes
// to the status and headers of the field rsp, and to the field body.
type bodyRecorder struct {
	rsp  *http.Response
	body bytes.Buffer
}

func (w *bodyRecorder) Header() http.Header { return w.rsp.Header }

// WriteHeader is part of [http.ResponseWriter]. It ignores a status outside 200 to 999, and a 2xx for
// CONNECT.
func (w *bodyRecorder) WriteHeader(status int) {
	tunnel := w.rsp.Request.Method == http.MethodConnect && status/100 == 2
	if status >= http.StatusOK && status <= 999 && !tunnel {
		w.rsp.StatusCode = status
	}
}

func (w *bodyRecorder) Write(p []byte) (int, error) { return w.body.Write(p) }

// Classify is the [layer.Classifier] for HTTP and gRPC:
//
//	502, 503, 504; UNAVAILABLE                          Retryable
//	429; RESOURCE_EXHAUSTED                             Throttled
//	other 5xx; UNKNOWN, DEADLINE_EXCEEDED,
//	PERMISSION_DENIED, INTERNAL, DATA_LOSS              Failure
//	an error at the endpoint or on the network          Retryable
//	a [StatusError]                                     the class of its status
//	an invalid request, or a request body that failed   Ignorable
//	the context ended during a Read of an upload        Ignorable
//	any other error                                     Failure
//	any other response                                  Success
//
// An upload is a request body, except a body of gRPC and a body of HTTP/2 without a content-length.
// The gRPC status takes precedence over the HTTP status. It comes from the trailers if the response
// has ended and they have it, and otherwise from the headers. A gRPC status that is not a number is
// UNKNOWN. A gRPC response that ended without a gRPC status is classified by its HTTP status, as in
// linkerd's proxy.
func Classify(o layer.Outcome[*http.Response]) layer.Class {
	switch {
	case o.Err != nil:
		return classOfError(o.Err)
	case o.Response == nil:
		return layer.Success
	}
	if code, ok := grpcStatus(o.Response, o.Ended); ok {
		return layer.ClassifyGRPC(code)
	}
	return classOfStatus(o.Response.StatusCode)
}

func classOfError(err error) layer.Class {
	chosen, ok := errors.AsType[*StatusError](err)
	switch {
	case has[*bodyError](err), has[*message.RequestError](err):
		return layer.Ignorable
	case ok:
		return classOfStatus(chosen.status())
	case errors.Is(err, layer.ErrAttemptTimeout), isPeer(err):
		return layer.Retryable
	}
	return layer.Failure
}

func classOfStatus(status int) layer.Class {
	switch {
	case status == http.StatusTooManyRequests:
		return layer.Throttled
	case status >= http.StatusBadGateway && status <= http.StatusGatewayTimeout:
		return layer.Retryable
	case status >= http.StatusInternalServerError:
		return layer.Failure
	}
	return layer.Success
}

func grpcStatus(rsp *http.Response, ended bool) (uint32, bool) {
	text := first(rsp.Header, "Grpc-Status")
	if ended {
		text = cmp.Or(first(rsp.Trailer, "Grpc-Status"), text)
	}
	if text == "" {
		return 0, false
	}
	code, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		code = grpcUnknown
	}
	return uint32(code), true
}
