package httplayer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// gRPC codes; see google.golang.org/grpc/codes.
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

// StatusFromError returns the HTTP status for err, and the gRPC status code for
// a gRPC request. The first matching row applies, as in linkerd's proxy
// (app/core/src/errors/respond.rs):
//
//	a [StatusError]                                         its own
//	the request body arrived too slowly                     408   4 DEADLINE_EXCEEDED
//	rejected by a rate limit                                429   8 RESOURCE_EXHAUSTED
//	timeout of a layer, or fail-fast of a queue             504   4 DEADLINE_EXCEEDED
//	rejected by a layer because no endpoint is available    503  14 UNAVAILABLE
//	a retry was rejected                                    503  14 UNAVAILABLE
//	timeout while connecting, or of the caller's context    504   4 DEADLINE_EXCEEDED
//	no route                                                404   5 NOT_FOUND
//	canceled by the caller                                  502   1 CANCELLED
//	wrong identity of the endpoint                          502  14 UNAVAILABLE
//	reset of an HTTP/1 request sent by HTTP/2 (orig-proto)  502  14 UNAVAILABLE
//	the endpoint failed or could not be reached             502  14 UNAVAILABLE
//	rejected for any other reason                           503  14 UNAVAILABLE
//	anything else                                           500  13 INTERNAL
//
// A stream reset by the endpoint is 502 with the gRPC code for the reset's
// reason. An injected fault (layer.ErrInjected) has the status of its cause. A
// nil err is 200 and 0.
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
	case isShed(err), errors.Is(err, layer.ErrRetryRejected):
		return http.StatusServiceUnavailable, grpcUnavailable
	case timedOut(err):
		return http.StatusGatewayTimeout, grpcDeadlineExceeded
	case errors.Is(err, layer.ErrNoRoute):
		return http.StatusNotFound, grpcNotFound
	case errors.Is(err, context.Canceled):
		return http.StatusBadGateway, grpcCanceled
	case isBadGateway(err):
		return http.StatusBadGateway, peerCode(err)
	case errors.Is(err, layer.ErrNotReady):
		return http.StatusServiceUnavailable, grpcUnavailable
	}
	return http.StatusInternalServerError, grpcInternal
}

// closes reports whether the response for err closes the client's connection,
// so that the client's next requests may reach another proxy. It does not for a
// missing route, a rate limit and a chosen response, because another proxy
// would answer alike.
func closes(err error) bool {
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.Close && !errors.Is(err, layer.ErrInjected)
	}
	return !errors.Is(err, layer.ErrNoRoute) && !errors.Is(err, layer.ErrInjected) && !isRate(err)
}

// isBadGateway reports whether err is the fault of a peer or about its
// identity.
func isBadGateway(err error) bool {
	var reset *message.ResetError
	var identity *IdentityError
	return isPeer(err) || errors.As(err, &reset) || errors.As(err, &identity)
}

// peerCode returns the gRPC code for an error of a peer. A stream reset has its
// own, unless the request was HTTP/1.
func peerCode(err error) uint32 {
	if _, downgraded := errors.AsType[*downgradedError](err); downgraded {
		return grpcUnavailable
	}
	if reset, ok := errors.AsType[*message.ResetError](err); ok {
		return resetCode(reset)
	}
	return grpcUnavailable
}

// isRate reports whether err is a rejection by a rate limit. If an outer layer
// wrapped the rejection in its own Error, that layer decides.
func isRate(err error) bool {
	var refusal *layer.Error
	return errors.Is(err, layer.ErrNotReady) && errors.As(err, &refusal) && (refusal.Layer == "rate" || refusal.Layer == "rate_by")
}

// isShed reports whether err is a rejection by a layer that knows the endpoint
// to be down. The request did not reach the endpoint.
func isShed(err error) bool {
	var refusal *layer.Error
	var peer *peerError
	return errors.Is(err, layer.ErrNotReady) && errors.As(err, &refusal) && refusal.Endpoint == "" && errors.As(err, &peer)
}

func timedOut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	// The dial timeout of the kernel may be shorter than ours.
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && op.Timeout()
}

// isPeer reports whether err occurred outside this process.
func isPeer(err error) bool {
	var peer *peerError
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &peer) || errors.As(err, &op) || errors.As(err, &errno) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// peerError marks an error at the endpoint or on the way to it, because
// net/http has too many errors to list.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// resetCode maps reset codes as in gRPC's PROTOCOL-HTTP2.md, section "Errors".
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

// StatusError is an error with a status for the response of a [Handler].
// [Classify] treats it as a response with that status. Use it with
// layer.FaultInjection or return it from your own layer:
//
//	&StatusError{Code: 401, Header: http.Header{"Www-Authenticate": {"Bearer"}}} // 16 UNAUTHENTICATED
//	&StatusError{Code: 403, Reason: "web.default may not call books"}   // 7 PERMISSION_DENIED
//	&StatusError{Code: 508, Reason: "gateway loop", Close: true}        // 10 ABORTED
//	&StatusError{Code: 502, Reason: "no such backend", Close: true}     // 14 UNAVAILABLE
type StatusError struct {
	Code   int    // HTTP status, 400 to 599; others become 500
	GRPC   uint32 // gRPC code; 0 maps Code as http-grpc-status-mapping.md does, and 508 to ABORTED
	Reason string // text of Error; "" is the name of the status
	Close  bool   // closes the client's connection

	// Header is added to the response, for example WWW-Authenticate. Detail is a sentence
	// for the client, and Body replaces the whole body, see [Problem]. Header should have the
	// Content-Type of Body. None of them may be modified later.
	Header http.Header
	Detail string
	Body   []byte
}

// Error returns the reason, or the name of the status.
func (e *StatusError) Error() string {
	if e.Reason != "" {
		return e.Reason
	}
	code := e.status()
	return "status " + strconv.Itoa(code) + " " + http.StatusText(code)
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
