package grpclayer

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Code returns the status code of err. The first matching row applies. It is the
// mapping of httplayer.StatusFromError except for the rows with (*):
//
//	fail-fast, or the time limit of a layer      DEADLINE_EXCEEDED
//	rejected by a rate limit                     RESOURCE_EXHAUSTED (*)
//	the deadline of the caller                   DEADLINE_EXCEEDED
//	no route                                     NOT_FOUND
//	canceled by the caller                       CANCELLED
//	any other rejection, or a rejected retry     UNAVAILABLE
//	an error with a gRPC status                  that status
//	any other error                              UNKNOWN (*)
func Code(err error) codes.Code {
	var call *callError
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, layer.ErrFailFast), errors.Is(err, layer.ErrTimeout):
		return codes.DeadlineExceeded
	case isRateLimited(err):
		return codes.ResourceExhausted
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, layer.ErrNoRoute):
		return codes.NotFound
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.As(err, &call):
		return call.GRPCStatus().Code()
	case errors.Is(err, layer.ErrNotReady), errors.Is(err, layer.ErrRetryRejected):
		return codes.Unavailable
	}
	st, _ := statusOf(err)
	return st.Code()
}

// isRateLimited reports whether a rate limit rejected the request. An open breaker is
// unavailable, also if it knows the time of its next probe. The outermost layer decides.
func isRateLimited(err error) bool {
	refusal, ok := errors.AsType[*layer.Error](err)
	return ok && (refusal.Layer == "rate" || refusal.Layer == "rate_by") && errors.Is(err, layer.ErrNotReady)
}

// statusOf returns the status of the first error in the chain that has one, or UNKNOWN.
func statusOf(err error) (st *status.Status, ok bool) {
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) && has.GRPCStatus() != nil {
		return has.GRPCStatus(), true
	}
	return status.New(codes.Unknown, err.Error()), false
}

// statusError is an error of layers with its gRPC status and an unchanged chain.
type statusError struct {
	error
	st *status.Status
}

func (e *statusError) Unwrap() error              { return e.error }
func (e *statusError) GRPCStatus() *status.Status { return e.st }

// Is also looks into the error of a handler.
func (e *statusError) Is(target error) bool {
	handled, ok := errors.AsType[*handlerError](e.error)
	return ok && errors.Is(handled.err, target)
}

// As implements errors.As. It also searches the error that a handler returned.
func (e *statusError) As(target any) bool {
	handled, ok := errors.AsType[*handlerError](e.error)
	return ok && errors.As(handled.err, target)
}

// toStatus returns an error with a gRPC status. An error that has a status
// itself, or is not of this library, is returned unchanged.
func toStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	switch e := err.(type) { //nolint:errorlint // a wrapper has more details
	case *callError:
		return e.simplified()
	case *handlerError:
		return e.err
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code := Code(err)
	switch {
	case code == codes.Unavailable && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		code = status.FromContextError(ctx.Err()).Code() // the caller canceled with its own cause
	case code == codes.Unknown:
		if _, ok := statusOf(err); !ok {
			return err
		}
	}
	st := status.New(code, err.Error())
	if inner, ok := statusOf(err); ok && inner.Code() == code {
		st = withMessage(inner, err.Error()) // with its details
	}
	return &statusError{err, st}
}

func withMessage(st *status.Status, message string) *status.Status {
	p := st.Proto() // a copy
	p.Message = message
	return status.FromProto(p)
}

// reasonOnce adds reason to a message that does not have it yet.
func reasonOnce(message, reason string) string {
	if strings.Contains(message, reason) {
		return message
	}
	return message + ": " + reason
}

// Classify is the [layer.Classifier] of gRPC, by the status code of an error (see [Code]):
//
//	UNAVAILABLE, the time limit of one attempt          Retryable
//	RESOURCE_EXHAUSTED                                  Throttled
//	UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED,
//	INTERNAL, DATA_LOSS                                 Failure
//
// All others are a Success. The failures are those of linkerd's proxy and of httplayer. A
// client's stream is a Success when it opens, and is classified again at its end.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, layer.ErrAttemptTimeout):
		return layer.Retryable
	}
	return layer.ClassifyGRPC(uint32(Code(o.Err)))
}
