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
	"github.com/gotower/gotower/layer/httplayer/internal/h1"
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

// StatusFromError returns the HTTP status of the response for err, and the gRPC status code of the
// response to a gRPC request, by the table in "Errors" of the package documentation. It returns 200
// and 0 for nil.
//
// In a server other than a [Server], an error does not show that the client has left, but a [Handler]
// knows. An injected fault (layer.ErrInjected) has the status of its cause.
func StatusFromError(err error) (httpStatus int, grpcCode uint32) {
	if err == nil {
		return http.StatusOK, 0
	}
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.status(), chosen.grpcCode()
	}
	// An error often matches several cases, so their order matters. What the client did comes first. isShed comes
	// before timedOut and isPeer, because a circuit breaker's rejection wraps the endpoint's earlier error.
	// ErrNotReady comes last, because several of the other errors are rejections, too.
	switch {
	case has[*message.CanceledError](err):
		return StatusClientClosedRequest, grpcCanceled
	case errors.Is(err, message.ErrSlowBody):
		return http.StatusRequestTimeout, grpcDeadlineExceeded
	case has[*message.MalformedError](err), has[*h1.SyntaxError](err) && !has[*peerError](err):
		return http.StatusBadRequest, grpcInternal
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

// StatusClientClosedRequest is the status of a request whose client left before the response, as
// in nginx. Access logs, metrics and tap show it, but it is never sent.
const StatusClientClosedRequest = message.StatusClientClosedRequest

// closes reports whether the response for err closes the client's connection. meshed means that the client is a proxy
// of a service mesh, whose next connection may reach another proxy. For a [StatusError] the result is its Close
// field. For other errors of a meshed client it is true, except for a missing route, a rate limit and an injected
// fault, for which another proxy would respond in the same way. Other clients would pay a handshake for each error
// during an outage; for them, it is true only if a service is closed for ever.
func closes(err error, meshed bool) bool {
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.Close && !errors.Is(err, layer.ErrInjected)
	}
	if errors.Is(err, layer.ErrClosed) {
		return true
	}
	return meshed && !errors.Is(err, layer.ErrNoRoute) && !errors.Is(err, layer.ErrInjected) && !isRate(err)
}

// has reports whether err or an error that it wraps is an E.
func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// peerCode returns the gRPC code for a failure of the endpoint: the one that belongs to the HTTP/2
// error code if the endpoint reset the stream, and otherwise UNAVAILABLE.
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

// isShed reports whether err is a rejection by a layer above the endpoint, such as a circuit breaker,
// that cites an earlier failure of the endpoint. The rejected request itself has not reached the
// endpoint. Such an error wraps a peerError, but its Endpoint is empty.
func isShed(err error) bool {
	rejection, ok := errors.AsType[*layer.Error](err)
	return ok && errors.Is(err, layer.ErrNotReady) && rejection.Endpoint == "" && has[*peerError](err)
}

// timedOut reports whether a deadline has passed, that of the request or that of the kernel for
// dialing.
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

// peerError marks an error that occurred at the endpoint or on the way to it, so that the response is a
// 502 and not a 500. Its text is that of the marked error.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// resetCode returns the gRPC code for a stream reset's HTTP/2 error code, from the table in
// section "Errors" of gRPC's PROTOCOL-HTTP2.md. A code that is not in the table becomes INTERNAL.
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

// isPassedReset reports whether to pass err on as a reset of the client's stream: the endpoint has
// reset its stream, and the client sent r over HTTP/2. A rejection and an exceeded deadline have better
// answers than a reset.
func isPassedReset(r *http.Request, err error) bool {
	reset, ok := asReset(err)
	return ok && reset.Remote && r.ProtoMajor == 2 && !errors.Is(err, context.DeadlineExceeded)
}

// asReset returns the ResetError in err. It returns false if there is none or err is a rejection.
func asReset(err error) (*message.ResetError, bool) {
	if errors.Is(err, layer.ErrNotReady) {
		return nil, false
	}
	return errors.AsType[*message.ResetError](err)
}

// StatusError is an error that specifies the status of a [Server]'s response. [Classify] treats it as
// a response with that status. You can use it with layer.FaultInjection, or return it from your own
// layer:
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

	// Header is added to the response, for example WWW-Authenticate. Detail is a sentence for the
	// client, and Body replaces the whole body; see [Problem]. With Body, Header should contain a
	// Content-Type. The three fields must not be modified after the error was returned.
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

// status returns the HTTP status, or 500 if Code is not that of an error.
func (e *StatusError) status() int {
	if e.Code < 400 || e.Code > 599 {
		return http.StatusInternalServerError
	}
	return e.Code
}

// grpcCode returns GRPC, or if that is 0, the gRPC code that linkerd's proxy uses for the HTTP status.
func (e *StatusError) grpcCode() uint32 {
	if e.GRPC != 0 {
		return e.GRPC
	}
	// Apart from the loop, this is the table in gRPC's http-grpc-status-mapping.md.
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

// IdentityError reports that an endpoint does not have the required identity. It is answered with
// the status 502, or UNAVAILABLE for gRPC.
type IdentityError struct {
	Required string
	Found    string // identity of the endpoint; "" if it proved none
}

// Error returns a text with both identities.
func (e *IdentityError) Error() string {
	found := "has none"
	if e.Found != "" {
		found = "is " + strconv.Quote(e.Found)
	}
	return "identity required: " + strconv.Quote(e.Required) + ", but the endpoint " + found
}

// ErrorHandler writes a [Server]'s or [Handler]'s response to an error or a rejection. When it is
// called, w holds the status from [StatusFromError] and the headers for the error, such as
// Retry-After and a [StatusError]'s Header. It may change the status with WriteHeader, change the
// headers, and write a body. The response is kept in memory until the function returns. You must
// not use r afterwards. A 2xx for CONNECT is ignored, because it would start a tunnel. If a [Server]
// refuses a request by itself, r has what was read of it: see [Refusal].
//
// An ErrorHandler is called concurrently, but not for gRPC requests, because their error
// responses carry no body.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error)

// WithErrorHandler sets the function that writes error responses. The default is [Problem].
// Nil means responses without a body.
func WithErrorHandler(f ErrorHandler) HandlerOption {
	return func(h *handler) { h.onError = f }
}

// Problem is the default [ErrorHandler]. If err is a [StatusError] with a Body, it writes that
// body. Otherwise it writes problem details (RFC 9457) with the media type
// application/problem+json:
//
//	{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"rejected by breaker"}
//
// The member detail is a StatusError's Detail. For any other error with the status 503, it names the layer that
// rejected the request. The text of err is not sent, because it contains endpoint addresses.
func Problem(w http.ResponseWriter, _ *http.Request, err error) {
	status, _ := StatusFromError(err)
	problem := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{"about:blank", http.StatusText(status), status, detail(err)}
	if chosen, ok := errors.AsType[*StatusError](err); ok && chosen.Body != nil {
		_, _ = w.Write(chosen.Body)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	_ = json.NewEncoder(w).Encode(problem) //nolint:errchkjson // w is in memory
}

// detail returns the sentence about err that a client gets: a StatusError's Detail, or for a rejection with
// the status 503 the name of the outermost layer that rejected the request. It returns "" for other errors.
func detail(err error) string {
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.Detail
	}
	if status, _ := StatusFromError(err); status != http.StatusServiceUnavailable {
		return ""
	}
	// A layer that only adds something to the error, such as Retry, sets no Kind.
	rejection, ok := errors.AsType[*layer.Error](err)
	for ok && rejection.Kind == nil {
		rejection, ok = errors.AsType[*layer.Error](rejection.Err)
	}
	if !ok {
		return ""
	}
	return "rejected by " + rejection.Layer
}

// describeError lets the ErrorHandler complete rsp, the error response to r for err. The ErrorHandler
// may change the status and the headers, and write a body.
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

// refusal returns the response to a request that a [Server] refuses before it reaches the layers, for
// the reason in x.
func (h *handler) refusal(r *http.Request, x message.Refusal) *http.Response {
	rsp := newResponse(r, x.Status, make(http.Header))
	h.describeError(rsp, r, &StatusError{Code: x.Status, Reason: x.Err.Error()})
	return rsp
}

// bodyRecorder is the ResponseWriter of an ErrorHandler. It changes the status and the headers of rsp,
// and keeps the body in memory.
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
// An upload is a request body, except in gRPC and in HTTP/2 without a content-length. The gRPC
// status takes precedence over the HTTP status. It comes from the trailers if the response has
// ended and they contain it, and otherwise from the headers. A gRPC status that is not a number is
// UNKNOWN. If a gRPC response ends without a gRPC status, its HTTP status decides, as in linkerd's
// proxy.
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

// classOfError returns the class of a request that failed with err.
func classOfError(err error) layer.Class {
	chosen, ok := errors.AsType[*StatusError](err)
	// A bodyError may wrap a StatusError, such as that of LimitRequestBody, and is still no failure of the endpoint.
	switch {
	case has[*bodyError](err), has[*message.MalformedError](err), has[*message.RequestError](err):
		return layer.Ignorable
	case ok:
		return classOfStatus(chosen.status())
	case errors.Is(err, layer.ErrAttemptTimeout), isPeer(err):
		return layer.Retryable
	}
	return layer.Failure
}

// classOfStatus returns the class of a response with this HTTP status.
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

// grpcStatus returns the gRPC status of a response. ended is true if the response has ended, so that
// its trailers are complete. ok is false if there is no status.
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
		// A status that is not a number counts as UNKNOWN.
		code = grpcUnknown
	}
	return uint32(code), true
}
