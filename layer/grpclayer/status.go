package grpclayer

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Code returns the status code that stands for err. What layers say is
// translated, in this order; it is what httplayer.StatusFromError says but for the
// two lines that are marked:
//
//	out of time: in a queue (fail-fast), in a layer     DEADLINE_EXCEEDED
//	refused by a rate limit                             RESOURCE_EXHAUSTED (*)
//	out of time by the caller's context                 DEADLINE_EXCEEDED
//	no route                                            NOT_FOUND
//	the caller's own cancellation                       CANCELLED
//	refused for any other reason, or on a further try   UNAVAILABLE
//	an error with a status of gRPC's                    that
//	anything else                                       UNKNOWN (*)
//
// UNKNOWN is what gRPC itself says of an error that it does not know, and a
// stack changes nothing about the errors of a handler.
func Code(err error) codes.Code {
	var call *callError
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, layer.ErrFailFast), errors.Is(err, layer.ErrTimeout):
		return codes.DeadlineExceeded
	case throttled(err):
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

// throttled reports whether a rate limit rejected the request. An open breaker
// is unavailable, also if it knows the time of its next probe. The outermost
// layer decides.
func throttled(err error) bool {
	refusal, ok := errors.AsType[*layer.Error](err)
	return ok && (refusal.Layer == "rate" || refusal.Layer == "rate_by") && errors.Is(err, layer.ErrNotReady)
}

// statusOf returns the status of the first error in the chain that has one,
// and that of any other: UNKNOWN.
func statusOf(err error) (st *status.Status, ok bool) {
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) && has.GRPCStatus() != nil {
		return has.GRPCStatus(), true
	}
	return status.New(codes.Unknown, err.Error()), false
}

// statusError is an error of layers with the status that stands for it. Within
// the process it stays the error that it was.
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

// As is Is for [errors.As].
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
	switch e := err.(type) { //nolint:errorlint // one that is wrapped says more
	case *callError:
		return e.bare()
	case *handlerError:
		return e.err
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	code := Code(err)
	switch {
	case code == codes.Unavailable && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		code = status.FromContextError(ctx.Err()).Code() // refused because the caller canceled with its own cause
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

// Classify is the [layer.Classifier] of gRPC, by the status code that an error
// stands for (see [Code]):
//
//	UNAVAILABLE, the time limit of a single try         Retryable
//	RESOURCE_EXHAUSTED                                  Throttled
//	UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED,
//	INTERNAL, DATA_LOSS                                 Failure
//
// Everything else is a Success: the server did what it is there for. The
// failures are those of linkerd's proxy, and the same as httplayer's.
//
// A client's stream is a Success when it opened, and is judged again at its
// end.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, layer.ErrAttemptTimeout):
		return layer.Retryable
	}
	return layer.ClassifyGRPC(uint32(Code(o.Err)))
}
