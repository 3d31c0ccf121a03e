package httplayer

import (
	"net/http"
	"strconv"
)

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
