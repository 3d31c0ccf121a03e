package grpclayer

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gotower/gotower/layer"
)

// Code returns the gRPC status code of err. The first row that matches applies. The rows are the
// same as in httplayer.StatusFromError, except those with (*):
//
//	fail-fast, or a layer's time limit           DEADLINE_EXCEEDED
//	rejected by a rate limit                     RESOURCE_EXHAUSTED (*)
//	the caller's deadline                        DEADLINE_EXCEEDED
//	no route                                     NOT_FOUND
//	canceled by the caller                       CANCELLED
//	any other rejection, or a rejected retry     UNAVAILABLE
//	an error with a gRPC status                  that status
//	any other error                              UNKNOWN (*)
func Code(err error) codes.Code {
	var call *callError
	// The order matters: the first case that matches decides, and an Error may match several.
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

// isRateLimited reports whether the outermost layer.Error in err is a rejection by a rate limit,
// or by a balancer because of its endpoints' rate limits. It returns false for other layers, such
// as a breaker, even if the rejection sets RetryAfter.
func isRateLimited(err error) bool {
	refusal, ok := errors.AsType[*layer.Error](err)
	// The balancer's error wraps an endpoint's, which has the reason.
	for ok && refusal.Layer == "balance" {
		refusal, ok = errors.AsType[*layer.Error](refusal.Err)
	}
	return ok && (refusal.Layer == "rate" || refusal.Layer == "rate_by") && errors.Is(err, layer.ErrNotReady)
}

// statusOf returns the first status in err's chain, and true. If there is none, it returns the
// status UNKNOWN and false.
func statusOf(err error) (st *status.Status, ok bool) {
	var has interface{ GRPCStatus() *status.Status }
	if errors.As(err, &has) && has.GRPCStatus() != nil {
		return has.GRPCStatus(), true
	}
	return status.New(codes.Unknown, err.Error()), false
}

// statusError adds a gRPC status to an error of the layers, because gRPC sends UNKNOWN to a client for
// an error without a status. The errors in its chain still match.
type statusError struct {
	error
	st *status.Status
}

func (e *statusError) Unwrap() error { return e.error }

func (e *statusError) GRPCStatus() *status.Status { return e.st }

// Is reports whether the error that a handler returned matches target. Unwrap does not reach that
// error, because the layers got a handlerError, which hides the chain.
func (e *statusError) Is(target error) bool {
	handled, ok := errors.AsType[*handlerError](e.error)
	return ok && errors.Is(handled.err, target)
}

// As searches the chain of the error that a handler returned. Unwrap does not reach that error,
// because the layers got a handlerError, which hides the chain.
func (e *statusError) As(target any) bool {
	handled, ok := errors.AsType[*handlerError](e.error)
	return ok && errors.As(handled.err, target)
}

// toStatus returns err with a gRPC status, for the caller of an interceptor. It returns err
// unchanged if err already is a status, or if err is not an error from this library.
func toStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	// Errors of this package already know their status.
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
	// Without a status of its own, an unknown error is returned as it is.
	case code == codes.Unknown:
		if _, ok := statusOf(err); !ok {
			return err
		}
	}
	st := status.New(code, err.Error())
	// The status in the chain has details, which its text alone would lose.
	if inner, ok := statusOf(err); ok && inner.Code() == code {
		st = withMessage(inner, err.Error()) // with its details
	}
	return &statusError{err, st}
}

// withMessage returns st with another message, and with the same code and details.
func withMessage(st *status.Status, message string) *status.Status {
	p := st.Proto() // a copy
	p.Message = message
	return status.FromProto(p)
}

// reasonOnce returns message with reason appended. If message includes reason already, it
// returns message.
func reasonOnce(message, reason string) string {
	if strings.Contains(message, reason) {
		return message
	}
	return message + ": " + reason
}

// Classify is the [layer.Classifier] for gRPC. It uses an error's status code, see [Code]:
//
//	UNAVAILABLE, one attempt's time limit              Retryable
//	RESOURCE_EXHAUSTED                                  Throttled
//	UNKNOWN, DEADLINE_EXCEEDED, PERMISSION_DENIED,
//	INTERNAL, DATA_LOSS                                 Failure
//
// Any other code, and a call without an error, is a Success. Package httplayer classifies the codes
// in the same way, and linkerd's proxy counts the same codes as failures, except RESOURCE_EXHAUSTED.
// A client's stream is a Success when it opens, and is classified again at its end.
func Classify[Rsp any](o layer.Outcome[Rsp]) layer.Class {
	switch {
	case o.Err == nil:
		return layer.Success
	case errors.Is(o.Err, layer.ErrAttemptTimeout):
		return layer.Retryable
	}
	return layer.ClassifyGRPC(uint32(Code(o.Err)))
}
