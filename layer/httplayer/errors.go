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
)

// The gRPC codes that errors are given; see google.golang.org/grpc/codes.
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

// StatusFromError returns what a client is told of err: the HTTP status, and the gRPC
// status code for a gRPC request. They are those of linkerd's proxy
// (app/core/src/errors/respond.rs), in this order:
//
//	a [StatusError]                                         what it says
//	refused by a rate limit                                 429   8 RESOURCE_EXHAUSTED
//	out of time: in a queue (fail-fast), in a layer         504   4 DEADLINE_EXCEEDED
//	refused by a layer, since no endpoint is there          503  14 UNAVAILABLE
//	failed, and refused when it was sent again              503  14 UNAVAILABLE
//	out of time while connecting, or by the caller's ctx    504   4 DEADLINE_EXCEEDED
//	no route                                                404   5 NOT_FOUND
//	the caller's own cancellation                           502   1 CANCELLED
//	not the identity that was required                      502  14 UNAVAILABLE
//	an HTTP/1 request by HTTP/2 (orig-proto) that was reset 502  14 UNAVAILABLE
//	the endpoint failed, or could not be reached            502  14 UNAVAILABLE
//	refused for any other reason                            503  14 UNAVAILABLE
//	anything else                                           500  13 INTERNAL
//
// A stream that the endpoint reset is a 502, with the gRPC code that gRPC has
// for the reason. An injected fault (layer.ErrInjected) is answered as what it
// wraps, without a cause as anything else. Of a nil err it says 200 and 0. Neither HTTP nor linkerd has
// a status for a caller who cancelled; nobody is left to read it.
func StatusFromError(err error) (httpStatus int, grpcCode uint32) {
	var chosen *StatusError
	switch {
	case err == nil:
		return http.StatusOK, 0
	case errors.As(err, &chosen):
		return chosen.status(), chosen.grpcCode()
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

// closes reports whether an answer for err ends the client's connection, so
// that what waits in it goes elsewhere. It does not where elsewhere is no
// better: a missing route, a rate limit, an answer that somebody chose.
func closes(err error) bool {
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		return chosen.Close && !errors.Is(err, layer.ErrInjected)
	}
	return !errors.Is(err, layer.ErrNoRoute) && !errors.Is(err, layer.ErrInjected) && !isRate(err)
}

// isBadGateway reports whether err is answered as the fault of a peer: it came
// from one, or it is about who that is.
func isBadGateway(err error) bool {
	var reset streamError
	var identity *IdentityError
	return isPeer(err) || errors.As(err, &reset) || errors.As(err, &identity)
}

// peerCode is the gRPC code for what came from beyond this process: that of a
// stream's reset, unless the request was HTTP/1's.
func peerCode(err error) uint32 {
	if _, downgraded := errors.AsType[*downgradedError](err); downgraded {
		return grpcUnavailable
	}
	if reset, ok := errors.AsType[streamError](err); ok {
		return reset.grpcCode()
	}
	return grpcUnavailable
}

// isRate reports whether it is a rate limit that refused. Where a layer above
// has something else to say of such a refusal, that counts.
func isRate(err error) bool {
	var refusal *layer.Error
	return errors.Is(err, layer.ErrNotReady) && errors.As(err, &refusal) && (refusal.Layer == "rate" || refusal.Layer == "rate_by")
}

// isShed reports whether err is a refusal by a layer that knows an endpoint to
// be away, not by the endpoint itself: the request never got as far.
func isShed(err error) bool {
	var refusal *layer.Error
	var peer *peerError
	return errors.Is(err, layer.ErrNotReady) && errors.As(err, &refusal) && refusal.Endpoint == "" && errors.As(err, &peer)
}

func timedOut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	// The kernel's own patience, where it is shorter than ours.
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && op.Timeout()
}

// isPeer reports whether err came from beyond this process.
func isPeer(err error) bool {
	var peer *peerError
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &peer) || errors.As(err, &op) || errors.As(err, &errno) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// peerError marks what went wrong at the endpoint or on the way there. net/http
// has too many errors of its own to list them.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// streamError is net/http's error for an HTTP/2 stream that was reset. That
// type is not exported, but it converts itself, by errors.As, to any struct
// with its fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "HTTP/2 stream reset" }

// The error codes of RFC 9113, section 7, that mean something here.
const (
	h2RefusedStream      = 0x7
	h2Cancel             = 0x8
	h2EnhanceYourCalm    = 0xb
	h2InadequateSecurity = 0xc
)

// grpcCode is the mapping of gRPC's PROTOCOL-HTTP2.md, section "Errors".
func (e streamError) grpcCode() uint32 {
	switch e.Code {
	case h2RefusedStream:
		return grpcUnavailable
	case h2Cancel:
		return grpcCanceled
	case h2EnhanceYourCalm:
		return grpcResourceExhausted
	case h2InadequateSecurity:
		return grpcPermissionDenied
	}
	return grpcInternal
}

// StatusError is an error that says how it is to be answered: by a [Handler],
// and to [Classify] by its HTTP status. Give it to layer.FaultInjection to break off
// requests with a status of your choice, or return it from a layer of your own:
//
//	&StatusError{Code: 403, Reason: "web.default may not call books"}   // a policy says no: 7 PERMISSION_DENIED
//	&StatusError{Code: 508, Reason: "gateway loop", Close: true}        // 10 ABORTED
//	&StatusError{Code: 502, Reason: "no such backend", Close: true}     // 14 UNAVAILABLE
type StatusError struct {
	Code   int    // the HTTP status: 400 to 599, else 500 is answered
	GRPC   uint32 // the gRPC code; 0 is the one that gRPC has for Code (http-grpc-status-mapping.md; ABORTED for 508)
	Reason string // what Error says; "" is the status in words
	Close  bool   // the answer ends the client's connection
}

// Error returns the reason, or else the status in words.
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
