package httplayer

import (
	"net/http"
	"strconv"
)

// StatusError is an error that says how it is to be answered: by a [Handler],
// and to [Classify] by its HTTP status. Give it to layer.Chaos to break off
// requests with a status of your choice, or return it from a layer of your own.
type StatusError struct {
	Code int    // the HTTP status: 400 to 599, else 500 is answered
	GRPC uint32 // the gRPC code; 0 is the one that gRPC has for Code (http-grpc-status-mapping.md)
}

// Error returns the status in words.
func (e *StatusError) Error() string {
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
	}
	return grpcUnknown
}
